package dev.palimpsest;

import dev.palimpsest.v1.AmendmentOp;
import dev.palimpsest.v1.Edit;

/**
 * Makes changes of a memory. A path is $['topics']['museum'][0] or /topics/museum/0; a value is
 * what JSON can say, such as a text, a number, a list, a map or a record.
 */
public final class Edits {
  private Edits() {}

  /** Sets the value of the path, whether there was one or not. */
  public static Edit put(String path, Object value) {
    return edit(AmendmentOp.AMENDMENT_OP_UNSPECIFIED, path, value);
  }

  /** Does as put; the amendment is marked as corrected when the path had a value. */
  public static Edit add(String path, Object value) {
    return edit(AmendmentOp.AMENDMENT_OP_ADD, path, value);
  }

  /** Does as put; the amendment is marked as corrected when the path had no value. */
  public static Edit update(String path, Object value) {
    return edit(AmendmentOp.AMENDMENT_OP_UPDATE, path, value);
  }

  /** Removes the path; later elements of a list move up. */
  public static Edit remove(String path) {
    return Edit.newBuilder().setOp(AmendmentOp.AMENDMENT_OP_REMOVE).setPath(path).build();
  }

  private static Edit edit(AmendmentOp op, String path, Object value) {
    return Edit.newBuilder().setOp(op).setPath(path).setValueJson(Schemas.write(value)).build();
  }
}
