package dev.palimpsest.conformance;

import dev.palimpsest.Memory;
import dev.palimpsest.Palimpsest;
import dev.palimpsest.Session;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The newest connection, and what scripts keep under a name. */
final class Client {
  private final Map<String, Object> handles = new ConcurrentHashMap<>();
  private volatile Palimpsest client;

  Palimpsest get() {
    return client;
  }

  void connect(Arguments a) {
    Palimpsest.Builder builder =
        Palimpsest.builder().target(a.text("target", System.getenv("PALIMPSEST_URL")));
    a.texts("token", builder::token);
    a.texts("ca_file", one -> builder.caFile(Path.of(one)));
    a.seconds("timeout").ifPresent(builder::timeout);
    a.seconds("reach_seconds").ifPresent(builder::reachFor);
    client = builder.connect();
  }

  Session session(Arguments a) {
    Session session = client.session(a.text("session"));
    return a.seconds("timeout").map(session::withTimeout).orElse(session);
  }

  Memory<?> memory(Arguments a) {
    return a.has("type")
        ? session(a).memory(a.text("memory"), Profile.class)
        : session(a).memory(a.text("memory"));
  }

  void keep(Arguments a, Object handle) {
    handles.put(a.text("handle"), handle);
  }

  @SuppressWarnings("unchecked") // A script uses a handle for what it opened under this name.
  <T> T handle(Arguments a) {
    return (T) handles.get(a.text("handle"));
  }
}
