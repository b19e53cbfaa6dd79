package dev.palimpsest.conformance;

import dev.palimpsest.Description;
import java.util.List;
import java.util.Map;

/** The schema that the scripts call "Profile". */
@Description("What is known of a person.")
record Profile(
    @Description("As the person signs.") String name,
    Long age,
    @Description("What the person must not eat.") List<String> allergies,
    Map<String, String> facts,
    Address address) {

  /** Where the person lives. */
  record Address(String street, String city) {}
}
