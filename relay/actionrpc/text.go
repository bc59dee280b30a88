// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxOutput is how many bytes of a stream an execution keeps.
const maxOutput = 1 << 20

// outputText is what LangBot gets of a stream: text without blanks around it, and a word about what was left out of it.
// At most limit bytes of it were kept.
func outputText(kept []byte, total uint64, limit int) string {
	text := strings.TrimSpace(validText(kept))
	if total > uint64(limit) {
		text += fmt.Sprintf("\n... [raw output clipped at %d bytes, %d bytes discarded]", limit, total-uint64(limit))
	}
	return text
}

// validText makes text of bytes; each that is no UTF-8 becomes U+FFFD.
func validText(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b)))
}

// maxPreview is how many characters of standard error a preview has.
const maxPreview = 4000

// previewText is the end of what a process has written to standard error; kept may begin in the middle of a character.
func previewText(kept []byte) string {
	for len(kept) > 0 && !utf8.RuneStart(kept[0]) {
		kept = kept[1:]
	}
	text := []rune(strings.TrimRight(validText(kept), " \t\r\n"))
	return string(text[max(len(text)-maxPreview, 0):])
}
