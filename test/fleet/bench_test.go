// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// BenchmarkExecThroughTheGateway reports how many times as long an execution takes through the gateway as on the node: the ratio
// of the medians of alternating executions, so that other load on the host affects both.
func BenchmarkExecThroughTheGateway(b *testing.B) {
	for name, listen := range map[string]map[string]string{"over NATS": nil, "directly": {"n1": ""}} {
		b.Run(name, func(b *testing.B) { execThroughTheGateway(b, listen) })
	}
}

func execThroughTheGateway(b *testing.B, listen map[string]string) {
	b.Helper()
	h := buildListening(b, 1, listen)
	h.makes("s", "n1")
	far, near := h.client(), h.on("n1").boxd.Client
	near.Owner = "ci"
	var elapsed [2][]time.Duration
	run := func(c *client.Client) time.Duration {
		start := time.Now()
		if r, err := c.Exec(b.Context(), "s", &api.ExecRequest{Argv: []string{"/bin/true"}}); err != nil || r.Status != "exited" {
			b.Fatalf(`r = %+v, err = %v, want no error and r.Status == "exited"`, r, err)
		}
		return time.Since(start)
	}
	for range 20 {
		run(near)
		run(far)
	}
	var floor []time.Duration // of a bare fork, exec and wait of the same program
	for b.Loop() {
		start := time.Now()
		pid, err := syscall.ForkExec("/bin/true", []string{"true"}, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
			b.Fatal(err)
		}
		floor = append(floor, time.Since(start))
		elapsed[0] = append(elapsed[0], run(near))
		elapsed[1] = append(elapsed[1], run(far))
	}
	median := func(list []time.Duration) float64 {
		slices.Sort(list)
		return float64(list[len(list)/2])
	}
	b.ReportMetric(median(elapsed[1])/median(elapsed[0]), "times-as-long")
	b.ReportMetric((median(elapsed[1])-median(elapsed[0]))/median(floor), "F-more") // F: the floor
	b.ReportMetric(0, "ns/op")                                                      // the time of both together means nothing
}
