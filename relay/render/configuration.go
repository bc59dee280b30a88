// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"

	"github.com/boxd-dev/boxd/relay/api"
)

// Configuration prints one setting a line: key, origin, and value, which may be long.
func Configuration(out io.Writer, c *api.Configuration) error {
	w, style := newTable(), styleOf(out)
	fmt.Fprintln(w, "KEY\tSOURCE\tVALUE")
	for _, s := range c.Settings {
		fmt.Fprintf(w, "%s\t%s\t%s\n", Printable(s.Key), Printable(s.Origin), Printable(s.Value))
	}
	return w.print(out, style.headed("KEY", nil))
}
