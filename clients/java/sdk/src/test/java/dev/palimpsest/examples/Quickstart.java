package dev.palimpsest.examples;

import dev.palimpsest.Chunks;
import dev.palimpsest.Palimpsest;
import dev.palimpsest.Session;

/** Remembers a turn of a conversation, and recalls what fits a question. */
public final class Quickstart {
  private Quickstart() {}

  /** Runs against the service that PALIMPSEST_ADDRESS names, else the one on this machine. */
  public static void main(String[] arguments) {
    try (Palimpsest palimpsest = Palimpsest.connect()) {
      Session alice = palimpsest.session("alice");
      alice.remember(
          Chunks.user("I am allergic to peanuts, and I moved to Oslo."),
          Chunks.assistant("I will keep that in mind."));
      System.out.println(alice.recall("What may she eat?").getText());
    }
  }
}
