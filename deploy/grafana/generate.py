"""Writes the dashboards of Grafana from their sources: `python deploy/grafana/generate.py`.

A source has rows of panels with their queries and words; how that looks to Grafana, and where each
panel stands, is made here. `--check` writes nothing and names the files that differ.
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
#: Of Grafana 12 and 13; those from 11 on read it as well.
SCHEMA_VERSION = 42
#: Grafana's grid is 24 wide: three panels a row.
WIDTH, HEIGHT = 8, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


def dashboard(source: Json) -> Json:
    """Returns what Grafana reads."""
    panels: list[Json] = []
    top = 0
    for row in source["row"]:
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        head = {"id": len(panels) + 1, "type": "row", "title": row["title"], "gridPos": place}
        panels.append({**head, "collapsed": False, "panels": []})
        top += 1
        for at, one in enumerate(row["panel"]):
            x, y = at % 3 * WIDTH, top + at // 3 * HEIGHT
            place = {"x": x, "y": y, "w": WIDTH, "h": HEIGHT}
            panels.append({"id": len(panels) + 1, "gridPos": place, **panel(one)})
        top += (len(row["panel"]) + 2) // 3 * HEIGHT
    variables = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "runbooks",
            "label": "Where docs/reference/alerts.md is",
            "type": "textbox",
            "query": "docs/reference/alerts.md",
            "current": {"text": "docs/reference/alerts.md", "value": "docs/reference/alerts.md"},
        },
        *(choice(one) for one in source.get("variable", [])),
    ]
    others = {"type": "dashboards", "title": "Palimpsest", "tags": ["palimpsest"]}
    return {
        "uid": source["uid"],
        "title": source["title"],
        "description": source["summary"],
        "tags": ["palimpsest"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [{**others, "asDropdown": True, "keepTime": True, "includeVars": True}],
        "templating": {"list": variables},
        "panels": panels,
    }


def choice(source: Json) -> Json:
    """Returns a variable whose values are those of a label; any number may be chosen."""
    return {
        "name": source["name"],
        "label": source["label"],
        "type": "query",
        "datasource": DATASOURCE,
        "definition": source["values"],
        "query": {"query": source["values"], "refId": "values"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def panel(source: Json) -> Json:
    """Returns a panel without its place."""
    kind = source.get("kind", "timeseries")
    steps: list[Json] = [{"color": "green", "value": None}]
    steps += [{"color": one, "value": source[one]} for one in ("yellow", "red") if one in source]
    thresholds = {"mode": "absolute", "steps": steps}
    field: Json = {"unit": source["unit"], "min": 0, "thresholds": thresholds}
    if "max" in source:
        field["max"] = source["max"]
    options: Json = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    if kind == "timeseries":
        field["custom"] = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "type": kind,
        "title": source["title"],
        "description": f"Good: {source['good']}\n\nOtherwise: {source['act']}",
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": field, "overrides": []},
        "options": options,
        "links": [
            {"title": alert, "url": f"${{runbooks}}#{alert.lower()}", "targetBlank": True}
            for alert in source["alerts"]
        ],
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": DATASOURCE,
                "editorMode": "code",
                "expr": query,
                "legendFormat": legend,
                "range": kind == "timeseries",
                "instant": kind != "timeseries",
                "exemplar": source.get("exemplars", False),
            }
            for at, (legend, query) in enumerate(source["queries"])
        ],
    }


def main() -> None:
    """Writes what differs, or names it."""
    differing = []
    for path in sorted((FOLDER / "sources").glob("*.toml")):
        made = json.dumps(dashboard(tomllib.loads(path.read_text())), indent=2) + "\n"
        kept = FOLDER / "dashboards" / f"{path.stem}.json"
        if not kept.exists() or kept.read_text() != made:
            differing.append(kept.name)
            if "--check" not in sys.argv:
                kept.write_text(made)
    if differing and "--check" in sys.argv:
        sys.exit(f"run `python deploy/grafana/generate.py`; differs: {', '.join(differing)}")


if __name__ == "__main__":
    main()
