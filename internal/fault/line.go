// SPDX-License-Identifier: Apache-2.0

package fault

import "strings"

// LineOf finds the line of a key in a TOML file, whose tables come before it. The library does not report it, so this searches for the usual TOML form: the table's
// header, then the key.
func LineOf(text string, key ...string) int {
	table, last := strings.Join(key[:len(key)-1], "."), key[len(key)-1]
	inTable := table == ""
	line := 0
	for l := range strings.Lines(text) {
		line++
		l = strings.TrimSpace(l)
		if header, ok := strings.CutPrefix(l, "["); ok {
			header, _, _ = strings.Cut(header, "]")
			if inTable = header == table; header == strings.Join(key, ".") {
				return line
			}
			continue
		}
		if name, _, ok := strings.Cut(l, "="); ok && inTable && strings.Trim(strings.TrimSpace(name), `"'`) == last {
			return line
		}
	}
	return line
}
