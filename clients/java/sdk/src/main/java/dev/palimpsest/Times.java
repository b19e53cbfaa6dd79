package dev.palimpsest;

import com.google.protobuf.Timestamp;
import java.time.Duration;
import java.time.Instant;
import java.util.concurrent.ThreadLocalRandom;

/** Times of Java and of the API, and the pauses between tries. */
final class Times {
  private Times() {}

  static Duration duration(com.google.protobuf.Duration message) {
    return Duration.ofSeconds(message.getSeconds(), message.getNanos());
  }

  static com.google.protobuf.Duration message(Duration duration) {
    return com.google.protobuf.Duration.newBuilder()
        .setSeconds(duration.getSeconds())
        .setNanos(duration.getNano())
        .build();
  }

  static Timestamp message(Instant instant) {
    return Timestamp.newBuilder()
        .setSeconds(instant.getEpochSecond())
        .setNanos(instant.getNano())
        .build();
  }

  /** A time by which something must have happened. */
  record Until(long nanos) {
    static Until after(Duration duration) {
      return new Until(System.nanoTime() + duration.toNanos());
    }

    /** Returns what is left, which is never negative. */
    Duration left() {
      return Duration.ofNanos(Math.max(nanos - System.nanoTime(), 0));
    }

    boolean isWithin(Duration pause) {
      return pause.compareTo(left()) <= 0;
    }
  }

  /** The pauses between the tries of a call: each is twice as long as the one before. */
  static final class Backoff {
    private static final Duration LONGEST = Duration.ofSeconds(5);
    private final Duration first;
    private Duration next;

    Backoff(Duration first) {
      this.first = first;
      restart();
    }

    /** Makes the next pause the shortest again. */
    void restart() {
      next = first;
    }

    /** Returns how long to pause, with jitter, and not less than the service asks. */
    Duration pause(PalimpsestException error) {
      double jitter = ThreadLocalRandom.current().nextDouble(0.5, 1.0);
      Duration own = scaled(next, jitter);
      next = next.multipliedBy(2);
      next = next.compareTo(LONGEST) > 0 ? LONGEST : next;
      Duration asked = scaled(error.retryDelay().orElse(Duration.ZERO), 0.5 + jitter);
      return own.compareTo(asked) > 0 ? own : asked;
    }

    private static Duration scaled(Duration duration, double by) {
      return Duration.ofNanos((long) (duration.toNanos() * by));
    }
  }

  /** Pauses. Throws {@link PalimpsestException.Cancelled} for a thread that is interrupted. */
  static void sleep(Duration pause) {
    try {
      Thread.sleep(pause.toMillis(), pause.toNanosPart() % 1_000_000);
    } catch (InterruptedException error) {
      throw Errors.interrupted(error);
    }
  }
}
