// SPDX-License-Identifier: Apache-2.0

// Package quantity reads and writes sizes and durations the way people write them.
package quantity

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes. As text it has a unit ("512MiB", "4KiB", "100B"; "0" needs none); in
// JSON it is a number of bytes, and text is accepted too.
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

// ErrSize and ErrDuration say what a text should have looked like.
var (
	errSize     = errors.New(`not a size such as "512MiB" (units B, KiB, MiB, GiB, TiB)`)
	errDuration = errors.New(`not a duration such as "30s" or "5m"`)
)

// ParseSize reads a size.
func ParseSize(s string) (Size, error) {
	if s == "0" {
		return 0, nil
	}
	for _, u := range units() {
		digits, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || n > math.MaxInt64/uint64(u.size) || digits[0] == '+' {
			return 0, errSize
		}
		return Size(n) * u.size, nil
	}
	return 0, errSize
}

// String returns the size in its largest unit without a fraction.
func (s Size) String() string {
	for _, u := range units() {
		if s >= u.size && s%u.size == 0 {
			return strconv.FormatUint(uint64(s/u.size), 10) + u.name
		}
	}
	return "0"
}

// UnmarshalText reads text as ParseSize does.
func (s *Size) UnmarshalText(text []byte) error {
	v, err := ParseSize(string(text))
	*s = v
	return err
}

// UnmarshalJSON reads a number of bytes, or text as ParseSize does.
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

// MarshalText writes the size as a configuration has it.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON writes the number of bytes.
func (s Size) MarshalJSON() ([]byte, error) { return strconv.AppendUint(nil, uint64(s), 10), nil }

// Duration is a length of time, never negative. As text it is what time.ParseDuration reads; in JSON
// it is text, and a number is accepted as seconds. A bare integer in a configuration file is an
// error: nobody means nanoseconds.
type Duration time.Duration

// ParseDuration reads a duration.
func ParseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, errDuration
	}
	return Duration(d), nil
}

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

// UnmarshalText reads text as ParseDuration does.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := ParseDuration(string(text))
	*d = v
	return err
}

// UnmarshalJSON reads text as ParseDuration does, or a number of seconds.
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

// MarshalText writes the duration as a configuration has it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// MarshalJSON writes the text.
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
