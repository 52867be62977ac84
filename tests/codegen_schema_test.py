"""configs/template_config.json against its JSON Schema, and the schema against broken copies of the file.

Catches: a file and a schema that drift apart, and a schema that lets a misspelt key or a wrong type through.
"""
import copy
import json
import pathlib
import sys

import jsonschema  # Debian: python3-jsonschema. An import error is the test's failure.

root = pathlib.Path(sys.argv[1])
schema = json.loads((root / "configs/schemas/template_config.schema.json").read_text())
config = json.loads((root / "configs/template_config.json").read_text())
validator = jsonschema.Draft202012Validator(schema)
validator.check_schema(schema)
validator.validate(config)


def broken(change):
    copy_ = copy.deepcopy(config)
    change(copy_)
    return copy_


FAMILY = "decode_cuda"
faults = {
    "unknown family key": lambda c: c[FAMILY].update(tuning_parms={}),
    "unknown kind": lambda c: c.update(decode_tpu=c[FAMILY]),
    "missing key": lambda c: c[FAMILY].pop("conditions"),
    "range without step": lambda c: c[FAMILY]["dispatch_params"].update(HEAD_DIM={"min": 8, "max": 256}),
    "range with an extra key": lambda c: c[FAMILY]["dispatch_params"]["HEAD_DIM"].update(stride=8),
    "step of zero": lambda c: c[FAMILY]["dispatch_params"]["HEAD_DIM"].update(step=0),
    "empty list": lambda c: c[FAMILY]["tuning_params"].update(NUM_WARPS=[]),
    "value twice": lambda c: c[FAMILY]["tuning_params"].update(NUM_WARPS=[1, 1]),
    "value as text": lambda c: c[FAMILY]["tuning_params"].update(NUM_WARPS=["1"]),
    "value with a fraction": lambda c: c[FAMILY]["tuning_params"].update(NUM_WARPS=[1.5]),
    "parameter that is no name": lambda c: c[FAMILY]["tuning_params"].update({"A B": [1]}),
    "data type row too short": lambda c: c[FAMILY]["data_types"].append(["bf16", "bf16"]),
    "data type row too long": lambda c: c[FAMILY]["data_types"].append(["bf16", "bf16", "x", "y"]),
    "unknown data type": lambda c: c[FAMILY]["data_types"].append(["bfloat16", "bf16", "x"]),
    "condition without a reason": lambda c: c[FAMILY]["conditions"].append({"expression": "1"}),
    "condition with an extra key": lambda c: c[FAMILY]["conditions"][0].update(when="now"),
    "template outside the templates": lambda c: c[FAMILY].update(impl_file="/etc/passwd"),
}
missed = [name for name, change in faults.items() if validator.is_valid(broken(change))]
if missed:
    sys.exit(f"the schema accepts a file with: {', '.join(missed)}")
for family in config.values():
    impl = root / family["impl_file"]
    if not impl.is_file():
        sys.exit(f"{family['name']} names the template {family['impl_file']}, which does not exist")
print(f"valid; {len(faults)} broken copies refused")
