package dev.palimpsest;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import com.google.protobuf.ByteString;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import java.util.function.Consumer;

/** Cuts what an export sends into blocks that end with a check, after which it can continue. */
final class ExportLines {
  /** The first line, in bytes. */
  static final int MAX_HEADER_BYTES = 16 * 1024;

  private static final byte[] CHECK = "{\"record\":\"check\"".getBytes(StandardCharsets.UTF_8);
  private static final byte[] END = "{\"record\":\"end\"".getBytes(StandardCharsets.UTF_8);

  /**
   * Where an interrupted export continues: in the export, and in its file.
   *
   * @param checkLine the line of the last check
   * @param bytes of the file, up to the end of that line
   * @param lines as bytes
   */
  record Point(String exportId, ByteString checkLine, long bytes, long lines) {}

  private final ByteArrayOutputStream block = new ByteArrayOutputStream();
  private final ByteArrayOutputStream line = new ByteArrayOutputStream();
  private Optional<Point> point;
  private String exportId;
  private long lines;
  private boolean ended;

  ExportLines(Optional<Point> after) {
    point = after;
    restart();
  }

  /** Forgets what came after the last complete block. */
  void restart() {
    block.reset();
    line.reset();
    lines = point.map(Point::lines).orElse(0L);
    exportId = point.map(Point::exportId).orElse("");
  }

  /** Returns where the export continues; empty before its first block. */
  Optional<Point> point() {
    return point;
  }

  /** Returns whether the last line was read. */
  boolean isEnded() {
    return ended;
  }

  TransferProgress progress() {
    return point
        .map(one -> new TransferProgress(one.bytes(), one.lines()))
        .orElse(new TransferProgress(0, 0));
  }

  /** Reads more; passes on each complete block. */
  void feed(byte[] data, int length, Consumer<byte[]> onBlock) {
    int start = 0;
    for (int at = 0; at < length; at++) {
      if (data[at] == '\n') {
        line.write(data, start, at + 1 - start);
        start = at + 1;
        endLine(onBlock);
      }
    }
    line.write(data, start, length - start);
  }

  private void endLine(Consumer<byte[]> onBlock) {
    byte[] whole = line.toByteArray();
    line.reset();
    block.writeBytes(whole);
    lines++;
    if (exportId.isEmpty()) {
      exportId = header(whole).get("export_id").getAsString();
    }
    ended = begins(whole, END);
    if (ended || begins(whole, CHECK)) {
      byte[] complete = block.toByteArray();
      block.reset();
      long bytes = progress().bytes() + complete.length;
      point = Optional.of(new Point(exportId, ByteString.copyFrom(whole), bytes, lines));
      onBlock.accept(complete);
    }
  }

  private static boolean begins(byte[] line, byte[] with) {
    return line.length >= with.length
        && java.util.Arrays.equals(line, 0, with.length, with, 0, with.length);
  }

  /** Returns the header of an export. Throws IllegalArgumentException for another line. */
  static JsonObject header(byte[] line) {
    try {
      JsonElement read = JsonParser.parseString(new String(line, StandardCharsets.UTF_8));
      if (read.isJsonObject()) {
        JsonObject header = read.getAsJsonObject();
        boolean isHeader =
            MessageParts.text(header, "record").filter("header"::equals).isPresent()
                && MessageParts.text(header, "session").isPresent()
                && MessageParts.text(header, "export_id").isPresent();
        if (isHeader) {
          return header;
        }
      }
    } catch (JsonParseException malformed) {
      // It is refused below, without its content.
    }
    throw new IllegalArgumentException(
        "the file is no export of a session: its first line is no header");
  }
}
