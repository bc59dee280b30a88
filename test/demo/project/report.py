# SPDX-License-Identifier: Apache-2.0
"""Reads sales.csv and writes report.md beside it."""
import collections
import csv

total = collections.Counter()
with open("sales.csv", newline="") as f:
    for row in csv.DictReader(f):
        total[row["region"]] += int(row["units"]) * float(row["price"])

width = max(total.values())
lines = ["| region | revenue |", "|---|---:|"]
for region, sum_ in total.most_common():
    print(f"  {region:<6} {sum_:8.2f}  {'#' * round(30 * sum_ / width)}")
    lines.append(f"| {region} | {sum_:.2f} |")
with open("report.md", "w") as f:
    f.write("\n".join(lines) + "\n")
print(f"  wrote report.md, {len(lines) - 2} regions")
