package dev.palimpsest;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.rpc.Code;
import dev.palimpsest.v1.ExportSessionRequest;
import dev.palimpsest.v1.ExportSessionResponse;
import dev.palimpsest.v1.ImportSessionRequest;
import dev.palimpsest.v1.ImportSessionResponse;
import dev.palimpsest.v1.SessionServiceGrpc;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(30)
class TransfersTest {
  private static final String EXPORT = "11111111-2222-3333-4444-555555555555";
  private static final String HEADER =
      "{\"record\":\"header\",\"session\":\"s\",\"export_id\":\"" + EXPORT + "\"}\n";
  private static final List<String> BLOCKS =
      List.of(
          HEADER + "{\"record\":\"check\",\"n\":1}\n",
          "{\"record\":\"chunk\"}\n{\"record\":\"check\",\"n\":2}\n",
          "{\"record\":\"chunk\"}\n{\"record\":\"end\"}\n");
  private static final String WHOLE = String.join("", BLOCKS);

  /** Exports the blocks after a check, each in two messages, and cuts streams after one block. */
  private static final class Exporting extends SessionServiceGrpc.SessionServiceImplBase {
    final List<ExportSessionRequest> requests = new ArrayList<>();
    boolean changed;

    @Override
    public void exportSession(
        ExportSessionRequest request, StreamObserver<ExportSessionResponse> replies) {
      requests.add(request);
      String check = request.getResume().getCheckLine().toStringUtf8();
      int next = 0;
      for (int index = 0; index < BLOCKS.size(); index++) {
        next = !check.isEmpty() && BLOCKS.get(index).endsWith(check) ? index + 1 : next;
      }
      if (changed) {
        replies.onError(FakeService.refusal(Code.ABORTED_VALUE, "EXPORT_CHANGED", Map.of()));
        return;
      }
      send(BLOCKS.get(next), replies);
      if (next + 1 < BLOCKS.size()) {
        // The beginning of the next block arrives, and must not be kept.
        replies.onNext(data(BLOCKS.get(next + 1).substring(0, 7)));
        replies.onError(Status.UNAVAILABLE.asRuntimeException());
      } else {
        replies.onCompleted();
      }
    }

    private static void send(String block, StreamObserver<ExportSessionResponse> replies) {
      replies.onNext(data(block.substring(0, 10)));
      replies.onNext(data(block.substring(10)));
    }

    private static ExportSessionResponse data(String text) {
      return ExportSessionResponse.newBuilder().setData(ByteString.copyFromUtf8(text)).build();
    }
  }

  @Test
  void anExportIsContinuedAfterItsLastCheck(@TempDir Path folder) throws Exception {
    Path path = folder.resolve("export");
    Exporting exporting = new Exporting();
    List<TransferProgress> progress = new ArrayList<>();
    try (FakeService service = new FakeService(exporting)) {
      service.client.session("s").export(path, progress::add);
      assertEquals(WHOLE, Files.readString(path));
      assertEquals(3, exporting.requests.size());
      assertFalse(exporting.requests.get(0).hasResume());
      assertEquals(EXPORT, exporting.requests.get(2).getResume().getExportId());
      assertEquals(3, progress.size());
      assertEquals(new TransferProgress(WHOLE.length(), 6), progress.get(2));
      // A complete one stays as it is.
      service.client.session("s").export(path);
      assertEquals(3, exporting.requests.size());
      ByteArrayOutputStream bytes = new ByteArrayOutputStream();
      service.client.session("s").export(bytes);
      assertEquals(WHOLE, bytes.toString(StandardCharsets.UTF_8));
    }
    assertEquals(
        "rw-------",
        java.nio.file.attribute.PosixFilePermissions.toString(Files.getPosixFilePermissions(path)));
  }

  @Test
  void anInterruptedFileIsContinued(@TempDir Path folder) throws Exception {
    Path path = folder.resolve("export");
    Files.writeString(path, BLOCKS.get(0) + BLOCKS.get(1) + "{\"rec");
    Exporting exporting = new Exporting();
    try (FakeService service = new FakeService(exporting)) {
      service.client.session("s").export(path);
    }
    assertEquals(WHOLE, Files.readString(path));
    assertEquals(1, exporting.requests.size());
    assertEquals(
        "{\"record\":\"check\",\"n\":2}\n",
        exporting.requests.get(0).getResume().getCheckLine().toStringUtf8());
  }

  @Test
  void otherFilesAreNotOverwritten(@TempDir Path folder) throws Exception {
    Path path = Files.writeString(folder.resolve("notes"), "My notes.\n");
    Path other = Files.writeString(folder.resolve("other"), HEADER.replace("\"s\"", "\"t\""));
    Exporting exporting = new Exporting();
    exporting.changed = true;
    try (FakeService service = new FakeService(exporting)) {
      Session session = service.client.session("s");
      assertThrows(IllegalArgumentException.class, () -> session.export(path));
      assertThrows(IllegalArgumentException.class, () -> session.export(other));
      assertEquals("My notes.\n", Files.readString(path));
      Path fresh = folder.resolve("fresh");
      assertThrows(PalimpsestException.Aborted.class, () -> session.export(fresh));
      assertFalse(Files.exists(fresh), "nothing is left of what was refused");
    }
  }

  /** Stores lines; cuts the first stream once a few are durable. */
  private static final class Importing extends SessionServiceGrpc.SessionServiceImplBase {
    final List<ImportSessionRequest.Open> openings = new ArrayList<>();
    final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    long durable;

    @Override
    public synchronized StreamObserver<ImportSessionRequest> importSession(
        StreamObserver<ImportSessionResponse> replies) {
      return new StreamObserver<>() {
        @Override
        public void onNext(ImportSessionRequest request) {
          ImportSessionResponse.Builder response = ImportSessionResponse.newBuilder();
          if (request.hasOpen()) {
            openings.add(request.getOpen());
            response.getOpenedBuilder().setThroughLine(durable);
          } else if (openings.size() == 1) {
            // Two lines of data are durable.
            bytes.writeBytes("{\"record\":\"check\",\"n\":1}\n".getBytes(StandardCharsets.UTF_8));
            durable = 2;
            response.getAckBuilder().setThroughLine(durable);
            replies.onNext(response.build());
            replies.onError(Status.UNAVAILABLE.asRuntimeException());
            return;
          } else {
            bytes.writeBytes(request.getData().toByteArray());
            response.getAckBuilder().setThroughLine(6);
          }
          replies.onNext(response.build());
        }

        @Override
        public void onError(Throwable error) {}

        @Override
        public void onCompleted() {
          ImportSessionResponse.Builder response = ImportSessionResponse.newBuilder();
          response.getSessionBuilder().setId("copy");
          replies.onNext(response.build());
          replies.onCompleted();
        }
      };
    }
  }

  @Test
  void anImportIsContinuedAfterItsLastDurableLine(@TempDir Path folder) throws Exception {
    Path path = Files.writeString(folder.resolve("export"), WHOLE);
    Importing importing = new Importing();
    List<TransferProgress> progress = new ArrayList<>();
    try (FakeService service = new FakeService(importing)) {
      Session session =
          service.client.importSession(path, opening -> opening.setSession("copy"), progress::add);
      assertEquals("copy", session.id());
    }
    assertEquals(2, importing.openings.size());
    assertEquals(HEADER, importing.openings.get(1).getHeader().toStringUtf8());
    assertEquals(WHOLE, HEADER + importing.bytes.toString(StandardCharsets.UTF_8));
    assertTrue(progress.contains(new TransferProgress(WHOLE.length(), 6)), progress.toString());
  }

  @Test
  void whatIsNoExportIsNotSent(@TempDir Path folder) throws Exception {
    Path path = Files.writeString(folder.resolve("notes"), "My notes.\n");
    Importing importing = new Importing();
    try (FakeService service = new FakeService(importing)) {
      assertThrows(IllegalArgumentException.class, () -> service.client.importSession(path));
    }
    assertEquals(0, importing.openings.size());
  }
}
