"""docs/performance.md from measurements: a run of sections writes figures as JSON, and the page is made from that.

python -m bench.report run performance.json                  # all sections that need nothing from outside
python -m bench.report run performance.json --only policy    # one of them; the file's other sections stay
python -m bench.report run performance.json --peers DIR      # also beside other engines
python -m bench.report render performance.json docs/performance.md
"""
