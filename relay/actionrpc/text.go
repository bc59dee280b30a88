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
func outputText(kept []byte, total uint64, limit int) string {
	text := strings.TrimSpace(validText(kept))
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

// previewText returns the end of what a process has written to standard error; kept may begin inside a character.
func previewText(kept []byte) string {
	for len(kept) > 0 && !utf8.RuneStart(kept[0]) {
		kept = kept[1:]
	}
	text := []rune(strings.TrimRight(validText(kept), " \t\r\n"))
	return string(text[max(len(text)-maxPreview, 0):])
}
