"""JSON Schema, as much of it as the API's description uses; any other word in a schema is an error."""

_TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int,
    "number": (int, float),
}  # fmt: skip
_KNOWN = {"type", "properties", "required", "additionalProperties", "items", "anyOf", "$ref"}
_WORDS = {"title", "description", "default"}  # for readers


def complaints(value, schema, schemas, place="$"):
    """What is wrong with a value, each with its place; nothing where it is as the schema says."""
    assert set(schema) <= _KNOWN | _WORDS, schema
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        return complaints(value, schemas[name], schemas, place)
    if "anyOf" in schema:
        results = [complaints(value, option, schemas, place) for option in schema["anyOf"]]
        return [] if any(not option for option in results) else results[0]
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(_is(value, kind) for kind in kinds):
        return [f"{place}: {value!r} is no {kinds}"]
    wrong = []
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            wrong += complaints(item, schema["items"], schemas, f"{place}[{index}]")
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        wrong += [f"{place}: no {name}" for name in schema.get("required", []) if name not in value]
        for name, item in value.items():
            if name in properties:
                wrong += complaints(item, properties[name], schemas, f"{place}.{name}")
            elif schema.get("additionalProperties") is False:
                wrong.append(f"{place}: {name} is not described")
            elif isinstance(schema.get("additionalProperties"), dict):
                wrong += complaints(item, schema["additionalProperties"], schemas, f"{place}.{name}")
    return wrong


def _is(value, kind):
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])
