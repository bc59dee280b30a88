// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
)

// Bounds of labels.
const (
	maxLabels    = 32
	maxLabelSize = 256
)

// Bounds of metadata: entries, and bytes.
const (
	maxMetadata     = 1024
	maxMetadataName = 256
	maxMetadataSize = 64 << 10 // of all names and values together
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

// checkMetadata checks the metadata of a request, which boxd stores and does not interpret: text by name.
func checkMetadata(metadata map[string]string) error {
	if len(metadata) > maxMetadata {
		return fault.Field("metadata", len(metadata), fmt.Sprintf("at most %d", maxMetadata))
	}
	size := 0
	for k, v := range metadata {
		if k == "" || len(k) > maxMetadataName || !Printable(k) || !utf8.ValidString(v) {
			return fault.Field("metadata", k, fmt.Sprintf("a name of 1 to %d bytes without control characters, and a value in UTF-8", maxMetadataName))
		}
		size += len(k) + len(v)
	}
	if size > maxMetadataSize {
		return fault.Field("metadata", quantity.Size(size), fmt.Sprintf("at most %v, all names and values together", quantity.Size(maxMetadataSize)))
	}
	return nil
}

// Has reports whether a map contains all pairs.
func Has(all, pairs map[string]string) bool {
	for name, value := range pairs {
		if current, ok := all[name]; !ok || current != value {
			return false
		}
	}
	return true
}
