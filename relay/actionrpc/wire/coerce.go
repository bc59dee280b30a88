// SPDX-License-Identifier: Apache-2.0

// JSON values are coerced as LangBot's own runtime does (Pydantic): "30" and 30.0 are 30, "yes" is true.

package wire

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// IsNull reports whether a value is missing or null.
func IsNull(raw json.RawMessage) bool {
	return len(raw) == 0 || bytes.Equal(bytes.TrimSpace(raw), []byte("null"))
}

// StringOf reads a string and accepts nothing else.
func StringOf(raw json.RawMessage) (string, bool) {
	var s *string
	if json.Unmarshal(raw, &s) != nil || s == nil {
		return "", false
	}
	return *s, true
}

// exact is the largest integer up to which a float64 represents every integer exactly.
const exact = 1 << 53

// CoerceInt reads an integer; a numeric string, a boolean and a float without a fraction are accepted too.
func CoerceInt(raw json.RawMessage) (int64, bool) {
	if b, ok := truth(raw); ok {
		if b {
			return 1, true
		}
		return 0, true
	}
	text, ok := StringOf(raw)
	if !ok {
		text = string(bytes.TrimSpace(raw))
	}
	text = strings.TrimSpace(text)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > exact {
		return 0, false
	}
	return int64(f), true
}

// StrictInt reads an integer that is written as one.
func StrictInt(raw json.RawMessage) (int64, bool) {
	n, err := strconv.ParseInt(string(bytes.TrimSpace(raw)), 10, 64)
	return n, err == nil
}

// CoerceFloat reads a finite number; a numeric string and a boolean are accepted too.
func CoerceFloat(raw json.RawMessage) (float64, bool) {
	if n, ok := CoerceInt(raw); ok {
		return float64(n), true
	}
	text, ok := StringOf(raw)
	if !ok {
		text = string(bytes.TrimSpace(raw))
	}
	f, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return 0, false
	}
	return f, true
}

// CoerceBool reads a boolean, also written as 0, 1, or one of the usual words.
func CoerceBool(raw json.RawMessage) (value, ok bool) {
	if b, ok := truth(raw); ok {
		return b, true
	}
	text, ok := StringOf(raw)
	if !ok {
		text = string(bytes.TrimSpace(raw))
	}
	switch strings.ToLower(text) {
	case "1", "true", "yes", "on", "y", "t", "1.0":
		return true, true
	case "0", "false", "no", "off", "n", "f", "0.0":
		return false, true
	}
	return false, false
}

func truth(raw json.RawMessage) (value, ok bool) {
	switch string(bytes.TrimSpace(raw)) {
	case "true":
		return true, true
	case "false":
		return false, true
	}
	return false, false
}

// ObjectOf reads an object and accepts nothing else.
func ObjectOf(raw json.RawMessage) (map[string]json.RawMessage, bool) {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil || m == nil {
		return nil, false
	}
	return m, true
}
