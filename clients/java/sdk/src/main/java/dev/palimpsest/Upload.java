package dev.palimpsest;

import com.google.gson.JsonObject;
import com.google.protobuf.ByteString;
import dev.palimpsest.PalimpsestException.Aborted;
import dev.palimpsest.PalimpsestException.AlreadyExists;
import dev.palimpsest.Times.Backoff;
import dev.palimpsest.v1.GetSessionRequest;
import dev.palimpsest.v1.ImportSessionRequest;
import dev.palimpsest.v1.ImportSessionResponse;
import dev.palimpsest.v1.SessionServiceGrpc;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.Consumer;

/** Sends the file of an export, in one stream or several. */
final class Upload {
  /** Bytes of lines in one message. */
  private static final int DATA_BYTES = 512 * 1024;

  /** A line, in bytes; the service writes none as long. */
  private static final int MAX_LINE_BYTES = 16 * 1024 * 1024;

  private final Connection connection;
  private final Path path;
  private final ImportSessionRequest.Open opening;
  private final Consumer<TransferProgress> onProgress;
  private volatile long sentBytes;

  /** The last line that is durable. */
  private volatile long through;

  private Upload(
      Connection connection,
      Path path,
      ImportSessionRequest.Open opening,
      Consumer<TransferProgress> onProgress) {
    this.connection = connection;
    this.path = path;
    this.opening = opening;
    this.onProgress = onProgress;
  }

  /** Imports a file; returns the id of the session. */
  static String run(
      Connection connection,
      Path path,
      Consumer<ImportSessionRequest.Open.Builder> options,
      Consumer<TransferProgress> onProgress) {
    try {
      byte[] line = headerOf(path);
      JsonObject header = ExportLines.header(line);
      ImportSessionRequest.Open.Builder opening =
          ImportSessionRequest.Open.newBuilder().setSession(header.get("session").getAsString());
      options.accept(opening);
      opening.setHeader(ByteString.copyFrom(line));
      try {
        new Upload(connection, path, opening.build(), onProgress).send();
      } catch (AlreadyExists error) {
        // The reply of a stream before may have been lost.
        String export = header.get("export_id").getAsString();
        if (!isImported(connection, opening.getSession(), export)) {
          throw error;
        }
      }
      return opening.getSession();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static boolean isImported(Connection connection, String session, String export) {
    GetSessionRequest request = GetSessionRequest.newBuilder().setSession(session).build();
    try {
      return connection
          .call(SessionServiceGrpc.getGetSessionMethod(), request, Optional.empty())
          .getImportedFrom()
          .getExportId()
          .equals(export);
    } catch (PalimpsestException error) {
      return false;
    }
  }

  private static byte[] headerOf(Path path) throws IOException {
    try (InputStream file = new BufferedInputStream(Files.newInputStream(path))) {
      return line(file, ExportLines.MAX_HEADER_BYTES);
    }
  }

  /** Reads a line with its end, or as many bytes; fewer at the end of the file. */
  private static byte[] line(InputStream file, int most) throws IOException {
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    for (int next = file.read(); next >= 0; next = file.read()) {
      line.write(next);
      if (next == '\n' || line.size() == most) {
        break;
      }
    }
    return line.toByteArray();
  }

  private void send() throws IOException {
    Backoff backoff = new Backoff(Connection.FIRST_STREAM_PAUSE);
    int tries = 0;
    long reached = 0;
    while (true) {
      PalimpsestException error;
      try (InputStream file = new BufferedInputStream(Files.newInputStream(path))) {
        Optional<PalimpsestException> end = new Stream(file).run();
        if (end.isEmpty()) {
          return;
        }
        error = end.get();
      }
      tries = through > reached ? 0 : tries + 1;
      reached = through;
      boolean again =
          Errors.mayPass(error)
              || (error instanceof Aborted
                  && error.reason().equals("IMPORT_CONFLICT")
                  && reached > 0);
      if (!again || tries >= Exports.MAX_TRIES) {
        throw error;
      }
      Duration pause = backoff.pause(error);
      Times.sleep(pause);
    }
  }

  /** One stream. What it shares with gRPC's threads is guarded by its monitor. */
  private final class Stream extends ClientCall.Listener<ImportSessionResponse> {
    private final InputStream file;
    private final ClientCall<ImportSessionRequest, ImportSessionResponse> call =
        connection
            .channel()
            .newCall(SessionServiceGrpc.getImportSessionMethod(), CallOptions.DEFAULT);

    /** After which line to continue; empty until the stream is opened. */
    private OptionalLong after = OptionalLong.empty();

    private Optional<Status> status = Optional.empty();
    private Metadata trailers = new Metadata();

    Stream(InputStream file) {
      this.file = file;
    }

    /** Sends the rest of the file; returns why it failed, if it did. */
    Optional<PalimpsestException> run() throws IOException {
      try {
        call.start(this, new Metadata());
        call.request(1);
        call.sendMessage(ImportSessionRequest.newBuilder().setOpen(opening).build());
        if (await(() -> after.isPresent())) {
          sendData();
        }
        await(() -> false);
        synchronized (this) {
          return status.get().isOk()
              ? Optional.empty()
              : Optional.of(connection.failure(new StatusRuntimeException(status.get(), trailers)));
        }
      } finally {
        call.cancel("the client has left", null);
      }
    }

    private void sendData() throws IOException {
      long line = after.orElseThrow();
      sentBytes = 0;
      for (long number = 1; number <= Math.max(line, 1); number++) {
        byte[] passed = line(file, MAX_LINE_BYTES);
        sentBytes += passed.length;
        if (passed.length == 0 || passed[passed.length - 1] != '\n') {
          throw new IllegalArgumentException(
              "the import was continued with a shorter file: it ends before line " + number);
        }
      }
      byte[] data = new byte[DATA_BYTES];
      // The service reads on when it can; until then nothing more of the file is in memory.
      while (await(call::isReady)) {
        int length = file.readNBytes(data, 0, DATA_BYTES);
        if (length == 0) {
          call.halfClose();
          return;
        }
        sentBytes += length;
        ByteString part = ByteString.copyFrom(data, 0, length);
        call.sendMessage(ImportSessionRequest.newBuilder().setData(part).build());
      }
    }

    /** Waits; returns false where the stream is over. */
    private synchronized boolean await(java.util.function.BooleanSupplier isThere) {
      while (status.isEmpty() && !isThere.getAsBoolean()) {
        try {
          wait();
        } catch (InterruptedException error) {
          throw Errors.interrupted(error);
        }
      }
      return status.isEmpty();
    }

    @Override
    public synchronized void onReady() {
      notifyAll();
    }

    @Override
    public void onMessage(ImportSessionResponse response) {
      connection.reached();
      if (!response.hasSession()) {
        long line =
            response.hasOpened()
                ? response.getOpened().getThroughLine()
                : response.getAck().getThroughLine();
        synchronized (this) {
          through = line;
          after = after.isPresent() ? after : OptionalLong.of(line);
          notifyAll();
        }
        onProgress.accept(new TransferProgress(sentBytes, line));
      }
      call.request(1);
    }

    @Override
    public synchronized void onClose(Status end, Metadata trailing) {
      status = Optional.of(end);
      trailers = trailing;
      notifyAll();
    }
  }
}
