package palimpsest

import (
	"context"
	"iter"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// Tree is a memory that is a tree of summaries. All goroutines can share it.
type Tree struct{ *Memory }

// Tree returns a tree by its id. Nothing is sent.
func (s *Session) Tree(id string) *Tree { return &Tree{s.Memory(id)} }

// CreateTree creates a summary tree; nil: with the service's settings.
func (s *Session) CreateTree(ctx context.Context, id string, spec *pb.TreeSpec, existOK bool) (*Tree, error) {
	if spec == nil {
		spec = &pb.TreeSpec{}
	}
	wanted := &pb.Memory{Session: s.id, Id: id, Spec: &pb.Memory_Tree{Tree: spec}}
	return s.Tree(id), s.createMemory(ctx, wanted, existOK, "")
}

// Outline returns the levels, the nodes without a parent, and the text that is not summarized yet. Of
// the options it has no Position.
func (t *Tree) Outline(ctx context.Context, options *ReadOptions) (*pb.Tree, error) {
	given := orZero(options)
	if given.Position != nil {
		return nil, invalid("Position", "a tree is read at a Revision, or at its newest one")
	}
	return t.session.connection.trees.GetTree(ctx, &pb.GetTreeRequest{
		Session: t.session.id, Memory: t.id, Revision: given.Revision, Consistency: given.Consistency.message(),
	})
}

// Node returns a node by its id.
func (t *Tree) Node(ctx context.Context, node string, consistency *Consistency) (*pb.TreeNode, error) {
	return t.session.connection.trees.GetNode(ctx, &pb.GetNodeRequest{
		Session: t.session.id, Memory: t.id, Node: node, Consistency: orZero(consistency).message(),
	})
}

// Children yields the children of a node, in the order of the text.
func (t *Tree) Children(ctx context.Context, parent string, consistency *Consistency) iter.Seq2[*pb.TreeNode, error] {
	return t.nodes(ctx, &pb.ListNodesRequest{Scope: &pb.ListNodesRequest_Parent{Parent: parent}}, consistency)
}

// Level yields the nodes of a level, 0 for the leaves, in the order of the text.
func (t *Tree) Level(ctx context.Context, level int32, consistency *Consistency) iter.Seq2[*pb.TreeNode, error] {
	return t.nodes(ctx, &pb.ListNodesRequest{Scope: &pb.ListNodesRequest_Level{Level: level}}, consistency)
}

func (t *Tree) nodes(ctx context.Context, request *pb.ListNodesRequest, consistency *Consistency) iter.Seq2[*pb.TreeNode, error] {
	request.Session, request.Memory, request.PageSize = t.session.id, t.id, maxPage
	request.Consistency = orZero(consistency).message()
	return pages(func(token string) ([]*pb.TreeNode, string, error) {
		request.PageToken = token
		page, err := t.session.connection.trees.ListNodes(ctx, request)
		return page.GetNodes(), page.GetNextPageToken(), err
	})
}

// Text yields the text under a node, chunk by chunk.
func (t *Tree) Text(ctx context.Context, node string, consistency *Consistency) iter.Seq2[*pb.GetNodeTextResponse_Part, error] {
	request := &pb.GetNodeTextRequest{
		Session: t.session.id, Memory: t.id, Node: node, Consistency: orZero(consistency).message(),
	}
	return pages(func(token string) ([]*pb.GetNodeTextResponse_Part, string, error) {
		request.PageToken = token
		page, err := t.session.connection.trees.GetNodeText(ctx, request)
		return page.GetParts(), page.GetNextPageToken(), err
	})
}

// Seal seals the tree for good: the log so far gets a single root, and nothing is added later.
func (t *Tree) Seal(ctx context.Context, options *RequestOptions) (*Operation, error) {
	connection := t.session.connection
	request := &pb.SealTreeRequest{Session: t.session.id, Memory: t.id, RequestId: orZero(options).RequestID}
	return connection.operation(connection.trees.SealTree(ctx, request))
}
