// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
)

// Usage prints the usage by day, and the current values of what a policy counts.
func Usage(out io.Writer, list *api.UsageList, now time.Time) error {
	style, t := styleOf(out), newTable()
	fmt.Fprintln(t, "DAY\tOWNER\tBOXES\tBOX TIME\tEXECUTIONS\tDENIED\tCPU TIME\tMEMORY\tDISK")
	for _, d := range list.Days {
		day := d.Day
		if day == now.UTC().Format(time.DateOnly) {
			day = "today"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%d\t%s\t%s\t%s\n", day, Person(d.Principal), d.Sessions, seconds(d.SessionSeconds), d.Executions, d.Refused,
			seconds(d.CPUSeconds), gibibyteHours(d.MemoryByteHours), gibibyteHours(d.DiskByteHours))
	}
	if err := t.print(out, style.headed("DAY", nil)); err != nil {
		return err
	}
	if len(list.Holdings) == 0 {
		return nil
	}
	h := newTable()
	fmt.Fprintln(h, "LIMIT\tIN USE\tMAXIMUM")
	for _, holding := range list.Holdings {
		fmt.Fprintf(h, "%s\t%s\t%s\n", Printable(holding.Rule), amount(holding.Rule, holding.Used), amount(holding.Rule, holding.Allowed))
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	return h.print(out, style.headed("LIMIT", nil))
}

// seconds formats a duration briefly.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d == 0:
		return "-"
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return Roughly(d)
}

func gibibyteHours(n float64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatFloat(n/float64(quantity.GiB), 'f', 2, 64) + " GiBh"
}

// amount formats a value that a rule counts.
func amount(rule string, n float64) string {
	if strings.HasSuffix(rule, "memory") {
		return quantity.Size(n).String()
	}
	return strconv.FormatFloat(n, 'g', 6, 64)
}

// Denial returns one line on the rule that has refused something, "" if no setting changes what it allows, or if the
// refusal or its hint names the rule already.
func Denial(p *api.Problem) string {
	d := p.Denial
	if d == nil || d.Setting == "" || strings.Contains(p.Detail+p.Hint, d.Rule) {
		return ""
	}
	amount := func(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }
	text := Printable(d.Rule) + " (" + d.Layer + ")"
	switch used, allowed := Printable(d.Used), Printable(d.Allowed); {
	case amount(used) && amount(allowed):
		text += ": " + used + " of " + allowed + " in use"
	case used != "" && allowed != "": // roles
		text += ": " + used + ", needs " + allowed
	case amount(allowed):
		text += ": the limit is " + allowed
	case allowed != "":
		text += ": allows " + allowed
	}
	return text + "; operators can change it: " + Printable(d.Setting)
}
