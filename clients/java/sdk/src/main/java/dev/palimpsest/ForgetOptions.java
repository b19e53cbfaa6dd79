package dev.palimpsest;

import dev.palimpsest.v1.RedactChunksRequest;
import dev.palimpsest.v1.RedactChunksRequest.SelectionCase;

/**
 * What {@link Session#forget} removes. Exactly one of positions, thread, source and text says which
 * chunks.
 */
public final class ForgetOptions {
  private final RedactChunksRequest.Builder request = RedactChunksRequest.newBuilder();

  ForgetOptions() {}

  /** Removes the chunk at a position; call it again for more. */
  public ForgetOptions position(long position) {
    return positions(position, position);
  }

  /** Removes the chunks from a position to another, both included; call it again for more. */
  public ForgetOptions positions(long first, long last) {
    select(SelectionCase.POSITIONS);
    request.getPositionsBuilder().addRangesBuilder().setFirst(first).setLast(last);
    return this;
  }

  /** Removes all chunks of a thread. */
  public ForgetOptions thread(String thread) {
    select(SelectionCase.THREAD);
    request.setThread(thread);
    return this;
  }

  /** Removes all chunks of a source. */
  public ForgetOptions source(String source) {
    select(SelectionCase.SOURCE);
    request.setSource(source);
    return this;
  }

  /** Removes all chunks that contain a text of 3 to 1,000 characters, in any part and any case. */
  public ForgetOptions text(String text) {
    select(SelectionCase.TEXT);
    request.setText(text);
    return this;
  }

  /** Removes only the chunks that contain the text in this case. */
  public ForgetOptions caseSensitive() {
    request.setCaseSensitive(true);
    return this;
  }

  /**
   * Sets whether the same content becomes a tombstone when it is appended anew: by default for a
   * text, also when no chunk has it now.
   */
  public ForgetOptions keepOut(boolean keepOut) {
    request.setKeepOut(keepOut);
    return this;
  }

  /** Says why; it must not repeat what is to be forgotten. */
  public ForgetOptions reason(String reason) {
    request.setReason(reason);
    return this;
  }

  /** Removes nothing, and returns which chunks would be. */
  public ForgetOptions dryRun() {
    request.setValidateOnly(true);
    return this;
  }

  /** Removes the same first from the tenant's sessions that were imported from this one. */
  public ForgetOptions includeImports() {
    request.setIncludeImports(true);
    return this;
  }

  /** Names the request: for 24 hours the same id does nothing again. */
  public ForgetOptions requestId(String requestId) {
    request.setRequestId(requestId);
    return this;
  }

  RedactChunksRequest request(String session) {
    if (request.getSelectionCase() == SelectionCase.SELECTION_NOT_SET) {
      throw wrongSelection();
    }
    return request.setSession(session).build();
  }

  /** Refuses a second kind of selection, which would replace the first and remove too much. */
  private void select(SelectionCase wanted) {
    SelectionCase there = request.getSelectionCase();
    if (there != SelectionCase.SELECTION_NOT_SET
        && (there != wanted || wanted != SelectionCase.POSITIONS)) {
      throw wrongSelection();
    }
  }

  private static IllegalArgumentException wrongSelection() {
    return new IllegalArgumentException(
        "exactly one of positions, thread, source and text says which chunks to forget");
  }
}
