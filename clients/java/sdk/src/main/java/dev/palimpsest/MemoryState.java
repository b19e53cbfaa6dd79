package dev.palimpsest;

/**
 * A memory at one revision.
 *
 * @param value what it has
 * @param info its settings and progress, as the API has them
 */
public record MemoryState<T>(T value, dev.palimpsest.v1.Memory info) {

  /** Returns the revision that was read. */
  public long revision() {
    return info.getReadPoint().getRevision();
  }

  /** Returns the position up to which all chunks are in it. */
  public long appliedPosition() {
    return info.getReadPoint().getAppliedPosition();
  }

  /** Returns what makes a later read at least as fresh. */
  public String readToken() {
    return info.getReadPoint().getReadToken();
  }

  /** Returns the value as JSON. */
  public String json() {
    return info.getValueJson();
  }
}
