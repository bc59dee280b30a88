// SPDX-License-Identifier: Apache-2.0

// Package quantity reads sizes, such as 512MiB, or durations, such as 2h, the way people write them.
package quantity

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes. As text it has a unit ("512MiB", "1.5g", "100B"; "0" needs none); in
// JSON it is a number of bytes, and text is accepted too.
//
// Units are powers of 1024, as docker, podman and systemd have them for memory: 2G, 2g, 2GB and
// 2GiB are all 2 GiB. Output has the units B, KiB, MiB, GiB and TiB.
type Size uint64

// Units of a Size, largest first.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

type unit struct {
	name string
	size Size
}

func units() []unit {
	return []unit{{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", 1}}
}

// What a text must look like.
var (
	errSize     = errors.New("must be a size, for example 512MiB or 2g")
	errDuration = errors.New("must be a time, for example 30s, 5m or 1d")
)

// ParseSize parses a size as people type it: a number with or without a fraction, and a unit in
// any case. A number alone is in bytes.
func ParseSize(s string) (Size, error) {
	number, name := cutNumber(s)
	factor, ok := factorOf(name)
	if !ok || number == "" {
		return 0, errSize
	}
	if n, err := strconv.ParseUint(number, 10, 64); err == nil {
		if n > math.MaxInt64/uint64(factor) {
			return 0, errSize
		}
		return Size(n) * factor, nil
	}
	f, err := strconv.ParseFloat(number, 64)
	f *= float64(factor)
	if err != nil || f >= math.MaxInt64 {
		return 0, errSize
	}
	return Size(f), nil
}

// cutNumber splits digits, with or without a point, from what follows.
func cutNumber(s string) (number, rest string) {
	rest = strings.TrimLeft(s, "0123456789")
	if fraction, ok := strings.CutPrefix(rest, "."); ok && len(rest) < len(s) {
		if after := strings.TrimLeft(fraction, "0123456789"); len(after) < len(fraction) {
			rest = after
		}
	}
	return s[:len(s)-len(rest)], rest
}

// factorOf returns a unit by its name in any case: M, MB and MiB are the same.
func factorOf(name string) (Size, bool) {
	if name == "" {
		return 1, true
	}
	for _, u := range units() {
		if strings.EqualFold(name, u.name) || len(u.name) == 3 && (strings.EqualFold(name, u.name[:1]) || strings.EqualFold(name, u.name[:1]+"B")) {
			return u.size, true
		}
	}
	return 0, false
}

// hasUnit reports whether a text has a unit.
func hasUnit(s string) bool {
	return s == "0" || strings.Trim(s, "0123456789.") != ""
}

// String returns the size in the largest unit that needs no fraction.
func (s Size) String() string {
	for _, u := range units() {
		if s >= u.size && s%u.size == 0 {
			return strconv.FormatUint(uint64(s/u.size), 10) + u.name
		}
	}
	return "0"
}

// Short returns the size for a sentence, in its largest unit with one decimal: "3.5 GiB", "512 MiB".
func (s Size) Short() string {
	for _, u := range units() {
		if s >= u.size {
			return strconv.FormatFloat(math.Round(10*float64(s)/float64(u.size))/10, 'f', -1, 64) + " " + u.name
		}
	}
	return "0"
}

// UnmarshalText parses text as ParseSize does, but refuses a number without a unit: in a
// configuration file, most people who write one mean megabytes.
func (s *Size) UnmarshalText(text []byte) error {
	if !hasUnit(string(text)) {
		return errSize
	}
	v, err := ParseSize(string(text))
	*s = v
	return err
}

// UnmarshalJSON accepts a number of bytes, or text as ParseSize does.
func (s *Size) UnmarshalJSON(data []byte) error {
	if text, ok := unquote(data); ok {
		return s.UnmarshalText([]byte(text))
	}
	n, err := strconv.ParseUint(string(data), 10, 63)
	if err != nil {
		return errSize
	}
	*s = Size(n)
	return nil
}

// MarshalText returns the size in the form of a configuration file.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON returns the number of bytes.
func (s Size) MarshalJSON() ([]byte, error) { return strconv.AppendUint(nil, uint64(s), 10), nil }

// Duration is a length of time, never negative. As text it is what time.ParseDuration accepts,
// with days in front ("1d", "1d12h"); in JSON it is text, and a number is accepted as seconds. A
// number without a unit in a configuration file is an error.
type Duration time.Duration

// ParseDuration parses a duration as people type it. A number alone is in seconds.
func ParseDuration(s string) (Duration, error) {
	number, rest := cutNumber(s)
	var days time.Duration
	switch {
	case number != "" && rest == "":
		s += "s"
	case number != "" && (rest[0] == 'd' || rest[0] == 'D'):
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || n*float64(day) >= math.MaxInt64 {
			return 0, errDuration
		}
		days, s = time.Duration(n*float64(day)), rest[1:]
		if s == "" {
			return Duration(days), nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > math.MaxInt64-days {
		return 0, errDuration
	}
	return Duration(days + d), nil
}

const day = 24 * time.Hour

// String returns the duration as time.Duration does, without zero units at the end ("5m", not "5m0s").
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// UnmarshalText parses text as ParseDuration does, but refuses a number without a unit.
func (d *Duration) UnmarshalText(text []byte) error {
	if !hasUnit(string(text)) {
		return errDuration
	}
	v, err := ParseDuration(string(text))
	*d = v
	return err
}

// UnmarshalJSON accepts text as ParseDuration does, or a number of seconds.
func (d *Duration) UnmarshalJSON(data []byte) error {
	if text, ok := unquote(data); ok {
		return d.UnmarshalText([]byte(text))
	}
	n, err := strconv.ParseFloat(string(data), 64)
	// Not >: as a float64 the largest number of nanoseconds is one too many.
	if err != nil || n < 0 || n >= math.MaxInt64/float64(time.Second) {
		return errDuration
	}
	*d = Duration(n * float64(time.Second))
	return nil
}

// MarshalText returns the duration in the form of a configuration file.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// MarshalJSON returns the text.
func (d Duration) MarshalJSON() ([]byte, error) { return strconv.AppendQuote(nil, d.String()), nil }

// unquote returns the text of a JSON string.
func unquote(data []byte) (string, bool) {
	if len(data) == 0 || data[0] != '"' {
		return "", false
	}
	var s string
	err := json.Unmarshal(data, &s)
	return s, err == nil
}
