"""Runs an agent for 2,000 steps with prompts that stay short.

The agent patrols the rooms of a house and keeps what it finds. Every few steps the service
compresses the oldest ones into a paragraph; the prompt is that paragraph and the steps since.

    python examples/long_agent/long_agent.py
    python examples/long_agent/long_agent.py --steps 200

A run that was stopped continues where it stopped, when the same command is run again.
"""

import argparse
import time

from palimpsest.sync import Agent, connect

TASK = "Patrol the house, and find the red key."
ROOMS = ("hall", "kitchen", "study", "cellar", "garden", "attic", "stable")
#: The step at which the key is found.
FOUND_AT = 40


def model(prompt: str, step: int) -> tuple[str, str]:
    """Decides without a model: goes to the next room. Returns a thought and an action."""
    # A real one, of any provider:
    #   reply = openai.OpenAI().chat.completions.create(
    #       model="gpt-…", messages=[{"role": "user", "content": prompt}])
    assert TASK in prompt, "the task is in every prompt"
    room = ROOMS[step % len(ROOMS)]
    return f"Round {step // len(ROOMS) + 1}: the {room} is next.", f"go to {room}"


def world(action: str, step: int) -> str:
    """Returns what the agent sees after its action."""
    room = action.removeprefix("go to ")
    if step == FOUND_AT:
        return f"You are in the {room}. The red key hangs behind the door of the {room}."
    return f"You are in the {room}. It is quiet, and nothing has changed since the last round."


def run(agent: Agent, steps: int) -> None:
    """Takes the steps that are left, and prints how long prompts are."""
    longest, begin = 0, agent.step
    if begin > 1:
        print(f"{begin - 1} steps are durable, continuing with step {begin}")
    started = time.monotonic()
    for step in range(begin, steps + 1):
        context = agent.context()
        longest = max(longest, context.tokens)
        thought, action = model(context.text, step)
        # Returns when the step is on disk, so that the next context contains it.
        agent.record(world(action, step), thought, action)
        if step % max(steps // 5, 1) == 0:
            print(f"step {step}: a prompt of {context.tokens} tokens, at most {longest} so far")
    taken = steps - begin + 1
    if taken > 0:
        rate = taken / (time.monotonic() - started)
        print(f"{taken} steps, {rate:.0f} a second")


def main() -> None:
    """Runs the loop, then asks what happened long ago."""
    parser = argparse.ArgumentParser(description="An agent with a state memory.")
    parser.add_argument("--session", default="long-agent")
    parser.add_argument("--steps", type=int, default=2_000)
    given = parser.parse_args()
    with connect() as client:
        # `pinned` is what no compression may lose; without `period`, every 10 steps.
        with client.agent(
            given.session, task=TASK, period=20, state_tokens=200, pinned=[TASK]
        ) as agent:
            run(agent, given.steps)
            query = "Where does the red key hang?"
            # Goes down from the newest state through older ones to the step. Without `navigate`
            # the working context alone answers, with one call.
            answer = agent.ask(query, navigate=True)
            print(f"\nQ: {query}\n{answer.text or answer.cause}")
            print(f"  from step {', '.join(str(one.position) for one in answer.citations)}")
        cost = client.session(given.session).cost_report("state").accounting
        assert cost is not None, "it is a state memory, with steps"
        print(f"all prompts: {cost.pcc.context_tokens:,} tokens; compressions:", end=" ")
        print(f"{cost.pcc.compression_tokens:,}; with the whole history in each prompt:", end=" ")
        print(f"{cost.standard.context_tokens:,}")


if __name__ == "__main__":
    main()
