"""Validates a JSON file against a JSON Schema. Exit code 0: valid, 1: invalid, 2: could not be checked."""
import json
import sys

try:
    import jsonschema
except ImportError:
    print("python3-jsonschema is not installed (Debian: apt install python3-jsonschema)", file=sys.stderr)
    sys.exit(2)

schema = json.load(open(sys.argv[1], encoding="utf-8"))
validator = jsonschema.validators.validator_for(schema)
validator.check_schema(schema)
errors = list(validator(schema).iter_errors(json.load(open(sys.argv[2], encoding="utf-8"))))
for error in errors:
    print(f"{sys.argv[2]}: {'/'.join(map(str, error.path))}: {error.message[:200]}", file=sys.stderr)
sys.exit(1 if errors else 0)
