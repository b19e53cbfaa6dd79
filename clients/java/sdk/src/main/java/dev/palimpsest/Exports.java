package dev.palimpsest;

import dev.palimpsest.Times.Backoff;
import dev.palimpsest.v1.ExportSessionRequest;
import dev.palimpsest.v1.ExportSessionResponse;
import dev.palimpsest.v1.SessionServiceGrpc;
import io.grpc.StatusRuntimeException;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;

/** Writes exports of sessions to files, and continues interrupted ones. */
final class Exports {
  /** Tries in a row without any progress. */
  static final int MAX_TRIES = 8;

  private static final Set<StandardOpenOption> WRITING =
      Set.of(StandardOpenOption.CREATE, StandardOpenOption.WRITE);

  /** Only the owner of a file may read it. */
  private static final Set<PosixFilePermission> OWNERS =
      PosixFilePermissions.fromString("rw-------");

  private Exports() {}

  /** Writes an export to a file, and continues one that is not complete. */
  static void toFile(
      Connection connection, String session, Path path, Consumer<TransferProgress> onProgress) {
    try {
      ExportLines lines = new ExportLines(Optional.empty());
      if (Files.exists(path) && Files.size(path) > 0) {
        lines = read(path, session);
      }
      if (!lines.isEnded()) {
        write(connection, session, path, lines, onProgress);
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Reads where the export in a file continues. Throws for a file with other content. */
  private static ExportLines read(Path path, String session) throws IOException {
    ExportLines lines = new ExportLines(Optional.empty());
    try (InputStream file = Files.newInputStream(path)) {
      byte[] first = file.readNBytes(ExportLines.MAX_HEADER_BYTES);
      int end = end(first);
      if (end == 0) {
        // It was interrupted within the header.
        if (first[0] != '{' || first.length == ExportLines.MAX_HEADER_BYTES) {
          throw new IllegalArgumentException(
              path + " has other content than an export: name another file");
        }
        return lines;
      }
      byte[] header = java.util.Arrays.copyOf(first, end);
      if (!ExportLines.header(header).get("session").getAsString().equals(session)) {
        throw new IllegalArgumentException(
            path + " has an export of another session: name another file");
      }
      lines.feed(first, first.length, block -> {});
      byte[] data = new byte[64 * 1024];
      for (int length = file.read(data); length >= 0; length = file.read(data)) {
        lines.feed(data, length, block -> {});
      }
    }
    lines.restart();
    return lines;
  }

  /** Returns where the first line ends; 0: nowhere. */
  private static int end(byte[] data) {
    for (int at = 0; at < data.length; at++) {
      if (data[at] == '\n') {
        return at + 1;
      }
    }
    return 0;
  }

  private static void write(
      Connection connection,
      String session,
      Path path,
      ExportLines lines,
      Consumer<TransferProgress> onProgress)
      throws IOException {
    boolean isPosix = path.getFileSystem().supportedFileAttributeViews().contains("posix");
    FileAttribute<?>[] attributes =
        isPosix
            ? new FileAttribute<?>[] {PosixFilePermissions.asFileAttribute(OWNERS)}
            : new FileAttribute<?>[0];
    try (FileChannel file = FileChannel.open(path, WRITING, attributes)) {
      if (isPosix && Files.isRegularFile(path)) {
        Files.setPosixFilePermissions(path, OWNERS);
      }
      file.truncate(lines.progress().bytes());
      file.position(lines.progress().bytes());
      blocks(
          connection,
          session,
          lines,
          block -> {
            append(file, block);
            onProgress.accept(lines.progress());
          });
      file.force(true);
    } catch (PalimpsestException error) {
      if (Files.isRegularFile(path) && Files.size(path) == 0) {
        Files.delete(path);
      }
      throw error;
    }
  }

  private static void append(FileChannel file, byte[] block) {
    try {
      ByteBuffer left = ByteBuffer.wrap(block);
      while (left.hasRemaining()) {
        file.write(left);
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Passes on the blocks of an export, which is continued when the connection is lost. */
  static void blocks(
      Connection connection, String session, ExportLines lines, Consumer<byte[]> onBlock) {
    Backoff backoff = new Backoff(Connection.FIRST_STREAM_PAUSE);
    int tries = 0;
    while (true) {
      long before = lines.progress().bytes();
      try {
        receive(connection, session, lines, onBlock);
        return;
      } catch (StatusRuntimeException error) {
        PalimpsestException known = connection.failure(error);
        boolean advanced = lines.progress().bytes() > before;
        tries = advanced ? 1 : tries + 1;
        if (advanced) {
          backoff.restart();
        }
        Duration pause = backoff.pause(known);
        if (!Errors.mayPass(known) || tries >= MAX_TRIES) {
          throw known;
        }
        lines.restart();
        Times.sleep(pause);
      }
    }
  }

  private static void receive(
      Connection connection, String session, ExportLines lines, Consumer<byte[]> onBlock) {
    ExportSessionRequest.Builder request = ExportSessionRequest.newBuilder().setSession(session);
    lines
        .point()
        .ifPresent(
            point ->
                request
                    .getResumeBuilder()
                    .setExportId(point.exportId())
                    .setCheckLine(point.checkLine()));
    try (Responses<ExportSessionResponse> responses =
        connection.responses(
            SessionServiceGrpc.getExportSessionMethod(), request.build(), Optional.empty())) {
      for (var next = responses.next(); next.isPresent(); next = responses.next()) {
        connection.reached();
        byte[] data = next.get().getData().toByteArray();
        lines.feed(data, data.length, onBlock);
      }
    }
  }
}
