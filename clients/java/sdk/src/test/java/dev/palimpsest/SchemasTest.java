package dev.palimpsest;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class SchemasTest {
  enum Level {
    LOW,
    HIGH
  }

  record Address(String street, String city) {}

  @Description("A person.")
  record Person(
      @Description("As she signs.") String name,
      int age,
      Optional<Double> height,
      List<String> allergies,
      Map<String, Address> homes,
      Level level) {}

  record Unknown(java.time.Instant since) {}

  record Endless(List<Endless> others) {}

  @Test
  void aRecordIsASchema() {
    assertEquals(
        """
        {"title":"Person","description":"A person.","type":"object","properties":{\
        "name":{"type":"string","description":"As she signs."},\
        "age":{"type":"integer"},\
        "height":{"anyOf":[{"type":"number"},{"type":"null"}]},\
        "allergies":{"type":"array","items":{"type":"string"}},\
        "homes":{"type":"object","additionalProperties":{"$ref":"#/$defs/Address"}},\
        "level":{"enum":["LOW","HIGH"]}},"additionalProperties":false,\
        "$defs":{"Address":{"title":"Address","type":"object","properties":{\
        "street":{"type":"string"},"city":{"type":"string"}},"additionalProperties":false}}}""",
        Schemas.jsonSchemaOf(Person.class));
  }

  @Test
  void aValueIsReadIntoItsRecordAndWrittenAgain() {
    String json =
        """
        {"name":"Ada","age":36,"height":1.5,"allergies":["nuts"],\
        "homes":{"main":{"street":"1 High St","city":"London"}},"level":"HIGH"}""";
    Person person = Schemas.read(json, Person.class);
    assertEquals(
        new Person(
            "Ada",
            36,
            Optional.of(1.5),
            List.of("nuts"),
            Map.of("main", new Address("1 High St", "London")),
            Level.HIGH),
        person);
    assertEquals(json, Schemas.write(person));
  }

  @Test
  void whatAMemoryDoesNotHaveIsEmpty() {
    Person person = Schemas.read("{\"name\":null}", Person.class);
    assertNull(person.name());
    assertEquals(new Person(null, 0, Optional.empty(), List.of(), Map.of(), null), person);
  }

  @Test
  void whatNoSchemaCanSayIsRefusedByItsName() {
    assertRefused(Unknown.class, "Unknown.since");
    assertRefused(Endless.class, "Endless.others");
    IllegalArgumentException error =
        assertThrows(
            IllegalArgumentException.class, () -> Schemas.read("{\"age\":\"old\"}", Person.class));
    assertTrue(error.getMessage().contains("Person.age"), error.getMessage());
  }

  private static void assertRefused(Class<? extends Record> type, String name) {
    IllegalArgumentException error =
        assertThrows(IllegalArgumentException.class, () -> Schemas.jsonSchemaOf(type));
    assertTrue(error.getMessage().contains(name), error.getMessage());
  }
}
