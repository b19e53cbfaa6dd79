package dev.palimpsest;

import com.google.protobuf.Any;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.BindableService;
import io.grpc.ManagedChannel;
import io.grpc.Server;
import io.grpc.StatusRuntimeException;
import io.grpc.inprocess.InProcessChannelBuilder;
import io.grpc.inprocess.InProcessServerBuilder;
import io.grpc.protobuf.StatusProto;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/** A service in this process whose replies a test says. */
final class FakeService implements AutoCloseable {
  private final Server server;
  final Palimpsest client;

  FakeService(BindableService... services) throws IOException {
    String name = InProcessServerBuilder.generateName();
    InProcessServerBuilder builder = InProcessServerBuilder.forName(name);
    for (BindableService service : services) {
      builder.addService(service);
    }
    server = builder.build().start();
    ManagedChannel channel = InProcessChannelBuilder.forName(name).build();
    client = Palimpsest.of(channel, Duration.ofSeconds(20));
  }

  /** Returns a refusal as the service makes it. */
  static StatusRuntimeException refusal(int code, String reason, Map<String, String> metadata) {
    return refusal(code, reason, metadata, List.of());
  }

  /** Returns a refusal that says when to try again. */
  static StatusRuntimeException refusal(int code, String reason, Duration retryDelay) {
    RetryInfo.Builder retry = RetryInfo.newBuilder();
    retry.getRetryDelayBuilder().setNanos(retryDelay.getNano());
    return refusal(code, reason, Map.of(), List.of(Any.pack(retry.build())));
  }

  private static StatusRuntimeException refusal(
      int code, String reason, Map<String, String> metadata, List<Any> more) {
    ErrorInfo info =
        ErrorInfo.newBuilder()
            .setReason(reason)
            .setDomain("palimpsest")
            .putAllMetadata(metadata)
            .build();
    return StatusProto.toStatusRuntimeException(
        com.google.rpc.Status.newBuilder()
            .setCode(code)
            .setMessage("it was refused")
            .addDetails(Any.pack(info))
            .addAllDetails(more)
            .build());
  }

  @Override
  public void close() {
    client.close();
    server.shutdownNow();
  }
}
