// SPDX-License-Identifier: Apache-2.0

//go:build pypi

package e2b

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// Figures of the real matplotlib become pictures and chart data, and frames of the real pandas tables and data.
func TestPythonShowsRealFiguresAndFrames(t *testing.T) {
	packages := os.Getenv("E2B_PYTHON_PACKAGES")
	if packages == "" {
		packages = boxtest.TempDir(t)
		cmd := exec.CommandContext(t.Context(), "python3", "-m", "pip", "install", "--quiet", "--target", packages, "--only-binary", ":all:", "matplotlib", "pandas")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("pip cannot fetch matplotlib and pandas: %v\n%s", err, out)
		}
	}
	n := startNative(t, languagePython, "PYTHONPATH="+packages)
	n.run("import matplotlib.pyplot as plt, pandas as pd, numpy as np, datetime")
	for name, c := range map[string]struct{ code, want string }{
		"lines": {
			`plt.plot([1, 2, 3], [4, 5, 6], label="a"); plt.plot(np.array([1, 2]), np.array([7.5, np.nan])); plt.title("T"); plt.xlabel("time (s)"); plt.ylabel("y"); plt.show()`,
			`{"type":"line","title":"T","x_label":"time (s)","y_label":"y","x_unit":"s","y_unit":null,"x_scale":"linear","y_scale":"linear",` +
				`"elements":[{"label":"a","points":[[1,4],[2,5],[3,6]]},{"label":"Line 1","points":[[1,7.5],[2,null]]}]}`,
		},
		"times":   {`plt.plot([datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 2)], [1, 2]); plt.show()`, `{"type":"line","x_scale":"datetime","elements":[{"label":"Line 0","points":[["2026-01-01T00:00:00+00:00",1],["2026-01-02T00:00:00+00:00",2]]}]}`},
		"scatter": {`plt.scatter([1, 2], [3, 4], label="dots"); plt.show()`, `{"type":"scatter","elements":[{"label":"dots","points":[[1,3],[2,4]]}]}`},
		"bars":    {`plt.bar(["x", "y"], [3, 4], label="group"); plt.show()`, `{"type":"bar","elements":[{"label":"x","group":"group","value":3},{"label":"y","group":"group","value":4}]}`},
		"pie":     {`plt.pie([1, 3], labels=["a", "b"]); plt.show()`, `{"type":"pie","elements":[{"label":"a","angle":90,"radius":1},{"label":"b","angle":270,"radius":1}]}`},
		"box":     {`plt.boxplot([1, 2, 3, 4, 100]); plt.show()`, `{"type":"box_and_whisker","elements":[{"min":1,"first_quartile":2,"median":3,"third_quartile":4,"max":4,"outliers":[100]}]}`},
		"several": {
			`fig, (a, b) = plt.subplots(1, 2); a.plot([1, 2]); b.bar(["x"], [1]); fig.suptitle("both"); plt.show()`,
			`{"type":"superchart","title":"both","elements":[{"type":"line","elements":[{"points":[[0,1],[1,2]]}]},{"type":"bar","elements":[{"label":"x","value":1}]}]}`,
		},
		"of pandas":  {`pd.DataFrame({"a": [1, 2]}).plot(); plt.show()`, `{"type":"line","elements":[{"label":"a","points":[[0,1],[1,2]]}]}`},
		"a value":    {`fig, ax = plt.subplots(); ax.plot([1, 2]); fig`, `{"type":"line"}`},
		"not shown":  {`plt.plot([1, 2]);`, `{"type":"line"}`},
		"without it": {`plt.imshow([[1, 2], [3, 4]]); plt.show()`, `{}`},
	} {
		e := n.run(c.code)
		if len(e.results) != 1 || e.failed != nil {
			t.Errorf("%s: %d results, %+v, %s", name, len(e.results), e.failed, e.err)
			continue
		}
		if png := field(e.results[0], "image/png"); !strings.HasPrefix(png, "iVBORw0KGgo") {
			t.Errorf("%s: %.40q is no picture", name, png)
		}
		var got, want any
		if raw := e.results[0]["e2b/chart"]; raw != nil && json.Unmarshal(raw, &got) != nil || json.Unmarshal([]byte(c.want), &want) != nil {
			t.Fatalf("%s: raw = %s, want (raw == nil or json.Unmarshal(raw, &got) == nil) and json.Unmarshal([]byte(c.want), &want) == nil",
				name, raw)
		}
		if !within(want, got) {
			t.Errorf("%s: %s\nlacks of %s", name, e.results[0]["e2b/chart"], c.want)
		}
	}
	if e := n.run("pd.DataFrame({'a': [1, float('nan')], 'b': ['x', 'y'], 'c': pd.to_datetime(['2026-01-01', None])})"); !strings.Contains(field(e.main, "text/html"), "<table") ||
		string(e.main["e2b/data"]) != `{"a": [1.0, null], "b": ["x", "y"], "c": ["2026-01-01T00:00:00", null]}` {
		t.Errorf("e.main[\"e2b/data\"] = %s, e.failed = %+v, want field(e.main, \"text/html\") containing \"<table\" and e.main[\"e2b/data\"] == `{\"a\": [1.0, null], \"b\": [\"x\", \"y\"], \"c\": [\"2026-01-01T00:00:00\", null]}`",
			e.main["e2b/data"], e.failed)
	}
}

// within reports whether a value contains everything wanted, and its lists nothing else.
func within(want, got any) bool {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		for name, value := range w {
			if ok = ok || len(w) == 0; !ok || !within(value, g[name]) {
				return false
			}
		}
		return ok || len(w) == 0
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for i := range w {
			if !within(w[i], g[i]) {
				return false
			}
		}
		return true
	}
	return want == got
}
