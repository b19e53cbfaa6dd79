"""The reliability experiment of PCC: does an agent still know, after many steps?"""
