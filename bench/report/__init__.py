"""docs/performance.md from measurements: a run of sections writes JSON, and the page is rendered from that.

python -m bench.report run performance.json                  # all sections that need nothing from outside
python -m bench.report run performance.json --only policy    # one of them; the file's other sections stay
python -m bench.report run performance.json --peers DIR      # also beside other engines
python -m bench.report render performance.json > docs/performance.md
"""
