"""Each query of each panel, by where it is."""

from deploy.generate.dashboards import DASHBOARDS


def with_values(query: str, interval: str = "5m", choice: str = ".*") -> str:
    """As Grafana asks it: `choice` for each variable of the dashboard, and the interval."""
    for variable in ("job", "instance", "model", "tenant"):
        query = query.replace(f'"${variable}"', f'"{choice}"')
    return query.replace("$__rate_interval", interval)


PANELS = {
    f"{page.name}: {panel.title}: {legend or 'all'}": with_values(query)
    for page in DASHBOARDS
    for _, panels in page.rows
    for panel in panels
    for query, legend in panel.queries
}
