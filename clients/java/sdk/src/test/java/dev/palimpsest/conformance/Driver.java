package dev.palimpsest.conformance;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import dev.palimpsest.Palimpsest;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Function;

/** Makes the calls that the runner of clients/conformance/ sends, with the client's public API. */
public final class Driver {
  private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
  private final ExecutorService threads = Executors.newCachedThreadPool(Driver::daemon);
  private final Map<String, Function<Arguments, JsonElement>> calls = new HashMap<>();

  private Driver() {
    Client client = new Client();
    calls.put(
        "connect",
        a -> {
          client.connect(a);
          return Replies.object("sdk", "java", "version", Palimpsest.version());
        });
    calls.putAll(new SessionCalls(client).calls());
    calls.putAll(new MemoryCalls(client).calls());
    calls.putAll(new AnswerCalls(client).calls());
    calls.putAll(new SpendingCalls(client).calls());
    calls.putAll(new AccessCalls(client).calls());
  }

  /** Runs until the input ends. */
  public static void main(String[] arguments) throws IOException {
    Driver driver = new Driver();
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      JsonObject command = JsonParser.parseString(line).getAsJsonObject();
      driver.threads.execute(() -> driver.run(command));
    }
    System.exit(0);
  }

  private static Thread daemon(Runnable work) {
    Thread thread = new Thread(work);
    thread.setDaemon(true);
    return thread;
  }

  private void run(JsonObject command) {
    JsonObject reply = Replies.object("id", command.get("id"));
    String name = command.get("call").getAsString();
    JsonElement given = command.get("args");
    try {
      if (!calls.containsKey(name)) {
        reply.addProperty("unsupported", "the Java client has no " + name);
      } else {
        Arguments arguments =
            new Arguments(given == null ? new JsonObject() : given.getAsJsonObject());
        reply.add("result", calls.get(name).apply(arguments));
      }
    } catch (UnsupportedOperationException error) {
      reply.addProperty("unsupported", error.getMessage());
    } catch (RuntimeException error) {
      reply.add("error", Replies.error(error));
    }
    synchronized (out) {
      out.println(reply);
    }
  }
}
