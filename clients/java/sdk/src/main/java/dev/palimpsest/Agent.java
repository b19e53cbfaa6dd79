package dev.palimpsest;

import dev.palimpsest.PalimpsestException.DeadlineExceeded;
import dev.palimpsest.PalimpsestException.InvalidArgument;
import dev.palimpsest.PalimpsestException.ProducerClosed;
import dev.palimpsest.PalimpsestException.ProducerFenced;
import dev.palimpsest.PalimpsestException.Unavailable;
import dev.palimpsest.v1.Chunk;
import dev.palimpsest.v1.StateSpec;
import dev.palimpsest.v1.WorkingContext;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;

/**
 * What an agent's loop needs to work for thousands of steps with short prompts: the context before
 * each step, and a place for the step.
 *
 * <pre>{@code
 * try (Agent agent = palimpsest.agent("run-42", "Find the red key.")) {
 *   while (!done) {
 *     String prompt = agent.context().getText();
 *     … // The model decides, and the world answers.
 *     agent.record(observation, thought, action);
 *   }
 * }
 * }</pre>
 *
 * <p>A loop that starts again continues after its durable steps, at {@link #step}. Of two loops on
 * one session the later one continues, and the next step of the other throws {@link
 * ProducerFenced}.
 */
public final class Agent implements AutoCloseable {
  /** How many loops may take over a session at the same moment before one gives up. */
  private static final int OPENING_TRIES = 5;

  /** Reasons why a due compression is not there. */
  private static final Set<String> NOT_MADE =
      Set.of("NOT_APPLIED_IN_TIME", "MEMORY_STALLED", "BUDGET_EXHAUSTED");

  /** The settings of a loop. */
  public static final class Options {
    private String memory = "state";
    private String producerId = "agent";
    private Duration waitFor = Duration.ofSeconds(30);
    private Duration giveUp = Duration.ofMinutes(1);
    private final StateSpec.Builder spec = StateSpec.newBuilder();

    Options() {}

    /** Names the state memory, which is created if it is missing; "state" by default. */
    public Options memory(String memory) {
      this.memory = memory;
      return this;
    }

    /** Names the loop within the session; "agent" by default. */
    public Options producerId(String producerId) {
      this.producerId = producerId;
      return this;
    }

    /** Sets how long a context waits for a compression that is due; 30 seconds by default. */
    public Options waitFor(Duration waitFor) {
      this.waitFor = waitFor;
      return this;
    }

    /** Sets how long the service may be lost before the loop fails; a minute by default. */
    public Options giveUp(Duration giveUp) {
      this.giveUp = giveUp;
      return this;
    }

    /** Sets the task and other settings of the state memory. */
    public Options spec(Consumer<StateSpec.Builder> settings) {
      settings.accept(spec);
      return this;
    }
  }

  private final Connection connection;
  private final Session session;
  private final Options options;
  private Producer producer;

  /** Why the producer takes no more steps. */
  private Optional<PalimpsestException> failure = Optional.empty();

  private long epoch = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
  private long head;

  private Agent(Connection connection, Session session, Options options) {
    this.connection = connection;
    this.session = session;
    this.options = options;
  }

  static Agent open(Connection connection, Session session, Options options) {
    Agent agent = new Agent(connection, session, options);
    Memories.createIfMissing(
        connection,
        dev.palimpsest.v1.Memory.newBuilder()
            .setSession(session.id())
            .setId(options.memory)
            .setState(options.spec)
            .build(),
        Optional.empty());
    agent.producer = agent.openFencing();
    try {
      agent.head = session.info().getHead();
    } catch (RuntimeException error) {
      agent.producer.stop();
      throw error;
    }
    return agent;
  }

  /** Returns the number of the next step, from 1 on. Messages count as steps. */
  public synchronized long step() {
    return head + 1;
  }

  /**
   * Returns what the model reads before the next step.
   *
   * <p>Waits for a compression that is due. Without it the context has older vectors and more
   * recent steps; its {@code blocked} says why. Each step is in it once.
   */
  public WorkingContext context() {
    WorkingContext context = waited().orElseGet(() -> session.state(options.memory).context());
    synchronized (this) {
      head = Math.max(head, context.getHead());
    }
    return context;
  }

  private Optional<WorkingContext> waited() {
    if (options.waitFor.isZero()) {
      return Optional.empty();
    }
    try {
      return Optional.of(
          session
              .withTimeout(options.waitFor)
              .state(options.memory)
              .context(request -> request.getConsistencyBuilder().setFullyApplied(true)));
    } catch (DeadlineExceeded | Unavailable error) {
      // The next read reports what remains of it.
      return Optional.empty();
    } catch (PalimpsestException error) {
      if (!NOT_MADE.contains(error.reason())) {
        throw error;
      }
      return Optional.empty();
    }
  }

  /** Appends a step, of which any part may be empty, and not all; otherwise as the other. */
  public Producer.Ack record(String observation, String thought, String action) {
    return record(Chunks.step(observation, thought, action));
  }

  /** Appends a message, such as the user's; otherwise as {@link #record(Chunk)}. */
  public Producer.Ack note(String role, String text) {
    return record(Chunks.message(role, text));
  }

  /**
   * Appends a step; it is durable, and in the next context, when this returns. It is stored once,
   * also when the connection is lost.
   *
   * @throws InvalidArgument when nothing is stored; the next step may follow
   * @throws ProducerFenced after another loop has taken over
   */
  public synchronized Producer.Ack record(Chunk step) {
    try {
      Producer open = usable();
      open.append(step);
      Producer.Ack ack = open.flush().orElseThrow();
      head = Math.max(head, ack.position());
      return ack;
    } catch (ProducerFenced error) {
      failure = Optional.of(error);
      throw PalimpsestException.reworded(
          error,
          "another loop has taken over session '"
              + session.id()
              + "' as producer '"
              + options.producerId
              + "'; this one must end",
          Map.of());
    } catch (PalimpsestException error) {
      failure = Optional.of(error);
      throw error;
    }
  }

  /** Closes the loop once all recorded steps are durable. */
  @Override
  public synchronized void close() {
    if (producer == null) {
      return;
    }
    Producer open = producer;
    producer = null;
    if (failure.isPresent()) {
      // It was thrown to the caller that recorded the step.
      open.stop();
    } else {
      open.close();
    }
  }

  /** Returns the producer; after a refused step a new one of the same epoch. */
  private Producer usable() {
    if (producer == null) {
      throw new ProducerClosed("this agent is closed", null);
    }
    if (failure.isPresent() && failure.get() instanceof InvalidArgument) {
      // A refusal ends the stream; later steps need another one.
      producer.stop();
      producer = opened();
      failure = Optional.empty();
    }
    return producer;
  }

  /** Returns a producer that fences off those of earlier loops. */
  private Producer openFencing() {
    for (int left = OPENING_TRIES; ; left--) {
      try {
        return opened();
      } catch (ProducerFenced error) {
        if (left == 0) {
          throw error;
        }
        // The clock of the earlier loop was ahead of ours.
        epoch = Long.parseLong(error.metadata().get("epoch")) + 1;
      }
    }
  }

  private Producer opened() {
    return session.producer(options.producerId, options.giveUp, opening -> opening.setEpoch(epoch));
  }
}
