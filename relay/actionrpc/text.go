// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxOutput is how many bytes of a stream an execution keeps.
const maxOutput = 1 << 20

// outputText is what LangBot gets of a stream: text without surrounding whitespace, with a note about what was left out.
// At most limit bytes were kept.
func outputText(output []byte, total uint64, limit int) string {
	text := strings.TrimSpace(validText(output))
	if total > uint64(limit) {
		text += fmt.Sprintf("\n... [raw output clipped at %d bytes, %d bytes discarded]", limit, total-uint64(limit))
	}
	return text
}

// validText converts bytes to text; each invalid UTF-8 byte becomes U+FFFD.
func validText(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b)))
}

// maxPreview is the maximum length of a preview of standard error, in characters.
const maxPreview = 4000

// previewText returns the end of what a process has written to standard error; output may begin inside a character.
func previewText(output []byte) string {
	for len(output) > 0 && !utf8.RuneStart(output[0]) {
		output = output[1:]
	}
	text := []rune(strings.TrimRight(validText(output), " \t\r\n"))
	return string(text[max(len(text)-maxPreview, 0):])
}
