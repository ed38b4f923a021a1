"""Runs in the locked worker: whether a JSON text fits a schema."""

import json


def check(completions, schema, **kwargs):
    """1.0 for each text that is JSON and fits its schema (both come as text), else 0.0."""
    return [float(_fits(json.loads(text), json.loads(wanted))) for text, wanted in zip(completions, schema, strict=True)]


def _fits(value, schema):
    from jsonschema import exceptions, validators
    from referencing import Registry

    validator = validators.validator_for(schema, default=validators.Draft202012Validator)
    validator.check_schema(schema)
    try:
        validator(schema, registry=Registry()).validate(value)  # an empty registry: no document is fetched
    except exceptions.ValidationError:
        return False
    return True
