package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/client"
)

func main() {
	ctx := context.Background()
	os.MkdirAll("/tmp/try2/state", 0700)
	k, err := client.StartKeeper(ctx, client.KeeperConfig{Program: "/tmp/b/boxkeeper", BoxInit: "/tmp/b/boxinit", StateDir: "/tmp/try2/state",
		IDBase: 0x70000000, IDCount: 4096, IDLock: "/run/boxd-ids", Allow: []string{"{home}"}, Etc: []string{"alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl/certs"}, Stderr: os.Stderr})
	if err != nil {
		panic(err)
	}
	var du, rtt, tl, te, te2, tend, tclose []float64
	m := func(s []float64) string { sort.Float64s(s); return fmt.Sprintf("%.0f/%.0f", s[0], s[len(s)/2]) }
	for i := range 300 {
		t0 := time.Now()
		b, err := k.Launch(ctx, &isolation.Spec{Key: fmt.Sprintf("%032d", i), Hostname: "h1", ManagedWork: true, Scratch: isolation.Scratch{Bytes: 64 << 20, Inodes: 10000}})
		if err != nil {
			fmt.Println("rtt", m(rtt), "launch", err)
			continue
		}
		t1 := time.Now()
		rt := time.Now()
		for range 1 { p, _ := b.Start(&isolation.Command{Argv: []string{"/nonex"}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/workspace", ScriptArg: -1, Output: isolation.Output{Head: 600000, Tail: 400000}}, client.Files{}); p.Wait(ctx) }
		rtt = append(rtt, float64(time.Since(rt).Nanoseconds())/1e3)
		t1 = time.Now()
		ex := func() {
			p, _ := b.Start(&isolation.Command{Argv: []string{"/bin/true"}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/workspace", ScriptArg: -1, Output: isolation.Output{Head: 600000, Tail: 400000}}, client.Files{})
			x, err := p.Wait(ctx)
			if err != nil { panic(err) }
			du = append(du, float64(x.Duration.Nanoseconds())/1e3)
		}
		ex()
		t2 := time.Now()
		ex()
		t3 := time.Now()
		k.End(ctx, fmt.Sprintf("%032d", i), true)
		t4 := time.Now()
		b.Close()
		t5 := time.Now()
		f := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
		tl = append(tl, f(t1.Sub(t0))); te = append(te, f(t2.Sub(t1))); te2 = append(te2, f(t3.Sub(t2))); tend = append(tend, f(t4.Sub(t3))); tclose = append(tclose, f(t5.Sub(t4)))
		time.Sleep(2 * time.Millisecond)
	}
	fmt.Println("rtt", m(rtt), "launch", m(tl), "exec1", m(te), "exec2", m(te2), "end", m(tend), "close", m(tclose), "duration", m(du))
	k.Close()
}
