package store

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
)

// crowd is how many threads compete for each CPU of this machine just now, 1
// or more, by the fourth field of /proc/loadavg ("running/all"); 1 where that
// cannot be read. Beside a crowd, a store on the same machine that waits for
// its turn is as silent as one that is frozen.
func crowd() float64 {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 1
	}
	fields := bytes.Fields(raw)
	if len(fields) < 4 {
		return 1
	}
	running, _, _ := bytes.Cut(fields[3], []byte("/"))
	n, err := strconv.ParseFloat(string(running), 64)
	if err != nil {
		return 1
	}
	return max(1, n/float64(runtime.NumCPU()))
}

// patience is how many silent ticks make a verdict, when the average crowd
// during them was so large: a CPU that two share still serves each within a
// tick or so, and every further one makes each wait longer.
func patience(averageCrowd float64) int {
	return int(min(maxSilentTicks, silentTicks*max(1, averageCrowd/2)))
}
