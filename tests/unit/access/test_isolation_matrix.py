"""A new method or field is tried by the tests of isolation, or says that it names nothing."""

from tests.acceptance.access import matrix


def test_every_field_with_text_is_a_place_for_ids_or_content() -> None:
    unknown = {
        f"{method.name}: {field.name}"
        for method in matrix.methods()
        for field in matrix.texts(method.input_type)
        if field.name not in matrix.PLACES | matrix.CONTENT
    }
    assert unknown == set(), "add the field to PLACES or to CONTENT of the matrix"
    assert not matrix.PLACES & matrix.CONTENT


def test_every_method_with_an_id_has_a_place_for_it() -> None:
    names = {method.name for method in matrix.methods()}
    assert names >= set(matrix.REQUESTS)
    without = {
        method.name
        for method in matrix.methods()
        if not matrix.places(matrix.template(method))
        and any(field.name in ("session", "memory") for field in method.input_type.fields)
    }
    assert without == set(), "give the method a request with its places"
