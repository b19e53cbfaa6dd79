package dev.palimpsest;

import dev.palimpsest.v1.GetNodeRequest;
import dev.palimpsest.v1.GetNodeTextRequest;
import dev.palimpsest.v1.GetNodeTextResponse;
import dev.palimpsest.v1.GetTreeRequest;
import dev.palimpsest.v1.ListNodesRequest;
import dev.palimpsest.v1.SealTreeRequest;
import dev.palimpsest.v1.TreeNode;
import dev.palimpsest.v1.TreeServiceGrpc;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.stream.Stream;

/**
 * A summary tree, by its id.
 *
 * <pre>{@code
 * Tree book = session.createTree("book", spec -> spec.setSegmentTokens(2_000));
 * book.outline(request -> request.getConsistencyBuilder().setFullyApplied(true)).getTopsList();
 * }</pre>
 *
 * <p>Methods for memories with a schema throw {@link PalimpsestException.FailedPrecondition}.
 */
public final class Tree extends Memory<Map<String, Object>> {

  Tree(Session session, String id, Optional<Duration> timeout) {
    super(session, id, timeout, Schemas::readMap);
  }

  @Override
  public Tree withTimeout(Duration timeout) {
    return new Tree(session().withTimeout(timeout), id(), Optional.of(timeout));
  }

  /**
   * Seals the tree for good: the log so far gets a single root, and nothing is added later. Returns
   * the operation at once, or that of an earlier request that did not fail and was not cancelled.
   */
  public Operation seal() {
    SealTreeRequest request =
        SealTreeRequest.newBuilder().setSession(session().id()).setMemory(id()).build();
    return operation(connection.call(TreeServiceGrpc.getSealTreeMethod(), request, timeout));
  }

  /** Returns the tree as it is now; otherwise as the other. */
  public dev.palimpsest.v1.Tree outline() {
    return outline(request -> {});
  }

  /**
   * Returns levels, nodes without a parent, and the text that is not summarized yet: as it was, by
   * {@code revision} of the options, or once it is fresh enough, by their {@code consistency}.
   */
  public dev.palimpsest.v1.Tree outline(Consumer<GetTreeRequest.Builder> options) {
    GetTreeRequest.Builder request =
        GetTreeRequest.newBuilder().setSession(session().id()).setMemory(id());
    options.accept(request);
    return connection.call(TreeServiceGrpc.getGetTreeMethod(), request.build(), timeout);
  }

  /**
   * Returns a node by its id, such as "0.17".
   *
   * @throws PalimpsestException.NotFound ({@code NODE_NOT_FOUND})
   */
  public TreeNode node(String node) {
    GetNodeRequest request =
        GetNodeRequest.newBuilder()
            .setSession(session().id())
            .setMemory(id())
            .setNode(node)
            .build();
    return connection.call(TreeServiceGrpc.getGetNodeMethod(), request, timeout);
  }

  /** Returns the children of a node, in the order of the text; pages are read as needed. */
  public Stream<TreeNode> children(String parent) {
    return nodes(request -> request.setParent(parent));
  }

  /** Returns the nodes of a level, 0 for the leaves, in the order of the text. */
  public Stream<TreeNode> level(int level) {
    return nodes(request -> request.setLevel(level));
  }

  /** Returns the nodes that the options name; pages are read as needed. */
  public Stream<TreeNode> nodes(Consumer<ListNodesRequest.Builder> options) {
    ListNodesRequest.Builder request =
        ListNodesRequest.newBuilder().setSession(session().id()).setMemory(id()).setPageSize(PAGE);
    options.accept(request);
    return connection.all(
        TreeServiceGrpc.getListNodesMethod(),
        request.build(),
        page -> page.getNodesList(),
        timeout);
  }

  /** Returns the text under a node, chunk by chunk; pages are read as needed. */
  public Stream<GetNodeTextResponse.Part> text(String node) {
    return connection.all(
        TreeServiceGrpc.getGetNodeTextMethod(),
        GetNodeTextRequest.newBuilder()
            .setSession(session().id())
            .setMemory(id())
            .setNode(node)
            .build(),
        page -> page.getPartsList(),
        timeout);
  }
}
