// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"encoding/json"
	"strconv"

	"github.com/boxd-dev/boxd/relay/e2b/protocol"
)

// maxNestedCharts bounds how deep charts lie in charts: kernels make two levels, code can make any.
const maxNestedCharts = 4

// chartOf is a chart as clients of Scalebox read it; nil if it is none. Code may have made it of anything, and what has no place
// there is left out.
func chartOf(raw json.RawMessage) *protocol.Chart { return nestedChart(raw, maxNestedCharts) }

func nestedChart(raw json.RawMessage, depth int) *protocol.Chart {
	var c struct {
		Type     string
		Title    string
		Elements []json.RawMessage
	}
	var all map[string]json.RawMessage
	if depth == 0 || json.Unmarshal(raw, &all) != nil || json.Unmarshal(raw, &c) != nil || c.Type == "" {
		return nil
	}
	m := &protocol.Chart{Type: c.Type, Title: c.Title, Extra: map[string]string{}}
	for name, value := range all {
		if name == "type" || name == "title" || name == "elements" || string(value) == "null" {
			continue
		}
		m.Extra[name] = plain(value)
	}
	for _, e := range c.Elements {
		if element := chartElement(c.Type, e, depth); element != nil {
			m.Elements = append(m.Elements, element)
		}
	}
	return m
}

func chartElement(of string, raw json.RawMessage, depth int) *protocol.ChartElement {
	switch of {
	case "line", "scatter":
		var e struct {
			Label  string
			Points [][2]any
		}
		if json.Unmarshal(raw, &e) != nil {
			return nil
		}
		m := &protocol.ChartPoints{Label: e.Label}
		for _, p := range e.Points {
			m.Points = append(m.Points, chartPoint(p))
		}
		return &protocol.ChartElement{Element: &protocol.ChartElement_PointData{PointData: m}}
	case "bar":
		var e struct {
			Label, Group string
			Value        any
		}
		if json.Unmarshal(raw, &e) != nil {
			return nil
		}
		value, number := coordinate(e.Value)
		if number != nil {
			value = strconv.FormatFloat(*number, 'g', -1, 64)
		}
		return &protocol.ChartElement{Element: &protocol.ChartElement_BarData{BarData: &protocol.ChartBar{Label: e.Label, Group: e.Group, Value: value}}}
	case "pie":
		var e struct {
			Label         string
			Angle, Radius float64
		}
		if json.Unmarshal(raw, &e) != nil {
			return nil
		}
		return &protocol.ChartElement{Element: &protocol.ChartElement_PieData{PieData: &protocol.ChartSlice{Label: e.Label, Angle: e.Angle, Radius: e.Radius}}}
	case "box_and_whisker":
		var e struct {
			Label            string
			Min, Median, Max float64
			First            float64 `json:"first_quartile"`
			Third            float64 `json:"third_quartile"`
			Outliers         []float64
		}
		if json.Unmarshal(raw, &e) != nil {
			return nil
		}
		return &protocol.ChartElement{Element: &protocol.ChartElement_BoxWhiskerData{BoxWhiskerData: &protocol.ChartBox{
			Label: e.Label, Min: e.Min, FirstQuartile: e.First, Median: e.Median, ThirdQuartile: e.Third, Max: e.Max, Outliers: e.Outliers,
		}}}
	case "superchart":
		if nested := nestedChart(raw, depth-1); nested != nil {
			return &protocol.ChartElement{Element: &protocol.ChartElement_NestedChart{NestedChart: nested}}
		}
	}
	return nil
}

func chartPoint(p [2]any) *protocol.ChartPoint {
	m := &protocol.ChartPoint{}
	if text, number := coordinate(p[0]); number != nil {
		m.XValue = &protocol.ChartPoint_XNum{XNum: *number}
	} else {
		m.XValue = &protocol.ChartPoint_XStr{XStr: text}
	}
	if text, number := coordinate(p[1]); number != nil {
		m.YValue = &protocol.ChartPoint_YNum{YNum: *number}
	} else {
		m.YValue = &protocol.ChartPoint_YStr{YStr: text}
	}
	return m
}

// coordinate is a value of an axis: a number, or the text of a category or a time.
func coordinate(value any) (text string, number *float64) {
	switch v := value.(type) {
	case float64:
		return "", &v
	case string:
		return v, nil
	}
	return "", nil
}
