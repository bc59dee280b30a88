// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"cmp"
	"html"
	"slices"
	"strings"
)

// Prompt returns a text that tells a model which skills exist and where they are mounted: only names and descriptions, as
// agentskills.io recommends. at is the directory of the mounts. The texts are untrusted, so nothing in them can end the element
// they are in.
func Prompt(list []Skill, at string) string {
	if len(list) == 0 {
		return ""
	}
	list = slices.SortedFunc(slices.Values(list), func(a, b Skill) int { return cmp.Compare(a.Name, b.Name) })
	var b strings.Builder
	b.WriteString("<available_skills>\n")
	for i := range list {
		k := &list[i]
		b.WriteString("<skill>\n<name>" + html.EscapeString(k.Name) + "</name>\n<description>" +
			html.EscapeString(strings.Join(strings.Fields(k.Description), " ")) + "</description>\n")
		if at != "" {
			b.WriteString("<location>" + html.EscapeString(at+"/"+k.Name+"/"+k.Entry) + "</location>\n")
		}
		b.WriteString("</skill>\n")
	}
	b.WriteString("</available_skills>\n")
	return b.String()
}
