// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Bounds of labels.
const (
	maxLabels    = 32
	maxLabelSize = 256
)

// Printable reports whether a text is UTF-8 without control characters.
func Printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}

// CheckLabels checks the labels of a request.
func CheckLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fault.Field("labels", len(labels), fmt.Sprintf("at most %d", maxLabels))
	}
	for k, v := range labels {
		if k == "" || len(k)+len(v) > maxLabelSize || !Printable(k) || !Printable(v) {
			return fault.Field("labels", k, fmt.Sprintf("a name and a value of at most %d bytes together, without control characters", maxLabelSize))
		}
	}
	return nil
}
