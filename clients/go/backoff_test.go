package tidegate

import (
	"testing"
	"time"
)

func TestTheBackoffDoublesToItsMaximumAndIsHalfRandom(t *testing.T) {
	for tries, most := range map[int]time.Duration{
		1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 7: 6400 * time.Millisecond,
		8: maxBackoff, 1000: maxBackoff,
	} {
		found := map[time.Duration]bool{}
		for range 50 {
			pause := backoff(tries, minBackoff)
			if pause < most/2 || pause > most {
				t.Errorf("%d: %s is not between %s and %s", tries, pause, most/2, most)
			}
			found[pause] = true
		}
		if len(found) < 10 {
			t.Errorf("%d: only %d waits of 50 differ", tries, len(found))
		}
	}
}
