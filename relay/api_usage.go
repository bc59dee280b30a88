// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"strconv"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Limits of the requested number of days.
const (
	defaultDays = 30
	maxDays     = 10_000
)

// getUsage returns the usage of the caller, of another owner or of all, and what the caller or that owner has now.
func getUsage(c *Call) (any, error) {
	query := c.R.URL.Query()
	all, days := query.Get("all"), defaultDays
	if text := query.Get("days"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxDays {
			return nil, fault.Field("days", text, "1 to "+strconv.Itoa(maxDays))
		}
		days = n
	}
	switch {
	case all != "" && all != "true" && all != "false":
		return nil, fault.Field("all", all, "true or false")
	case all == "true" && !c.Caller.Is(access.Operator):
		return nil, fault.Field("all", "true", "false").Of(fault.Denied).WithText("permission denied: only operators can see everyone's usage")
	}
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	rows, err := c.Sup.Usage(owner, all == "true", days)
	if err != nil {
		return nil, err
	}
	list := api.UsageList{Holdings: []api.Holding{}, Days: make([]api.UsageDays, len(rows))}
	for i, r := range rows {
		list.Days[i] = api.UsageDays{
			Day: r.Day, Principal: r.Principal, Executions: r.Use.Executions, Refused: r.Use.Denied, Sessions: r.Use.Started,
			SessionSeconds: r.Use.Sessions.Seconds(), CPUSeconds: r.Use.CPU.Seconds(), MemoryByteHours: r.Use.Memory, DiskByteHours: r.Use.Disk,
		}
	}
	name, holdings := c.Sup.Holdings(owner)
	list.Policy = name
	for _, h := range holdings {
		list.Holdings = append(list.Holdings, api.Holding(h))
	}
	return list, nil
}
