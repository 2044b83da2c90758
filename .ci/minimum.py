"""The lowest versions that pyproject.toml allows, as constraints for pip: name==floor, one a line."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
floors = [*project["dependencies"], *extras["formats"], *extras["office"]]
floors += [each for each in extras["dev"] if each.startswith("polars")]
for each in floors:
    name, floor = re.fullmatch(r"([\w-]+)>=([\w.]+)", each).groups()
    print(f"{name}=={floor}")
