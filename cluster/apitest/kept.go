package apitest

import "runtime"

// Kept returns how many bytes of live memory one of n records takes. What only newRecord uses is not counted.
func Kept[R any](n int, newRecord func(i int) R) int {
	records := make([]R, n)
	before := liveHeap()
	for i := range records {
		records[i] = newRecord(i)
	}
	after := liveHeap()
	runtime.KeepAlive(records)
	return max(0, after-before) / n
}

func liveHeap() int {
	runtime.GC()
	runtime.GC() // what a first one freed, a second one sweeps
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
