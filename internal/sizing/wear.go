package sizing

// Rating is how many bytes a node's drives may be written, as their maker rates them. Zero: not known.
type Rating float64

// OfTBW is a rating in terabytes written, of one drive.
func OfTBW(terabytes float64, drives uint64) Rating {
	return Rating(terabytes * 1e12 * float64(drives))
}

// WarrantyYears is the time that drive writes per day are rated for, unless another one is given.
const WarrantyYears = 5

// OfDWPD is a rating in drive writes per day, over years.
func OfDWPD(perDay float64, size uint64, years float64, drives uint64) Rating {
	return Rating(perDay * float64(size) * 365 * years * float64(drives))
}

// Wear is what pauses do to the drives of a node.
type Wear struct {
	PausesPerDay float64 `json:"pauses_per_day"`
	BytesPerDay  float64 `json:"bytes_per_day"`
	Rating       Rating  `json:"rated_bytes,omitempty"`
	Years        float64 `json:"years_to_rating,omitempty"` // 0: not known, or nothing is written
}

// WearOf is that of so many bytes a pause.
func WearOf(written uint64, pausesPerDay float64, rating Rating) Wear {
	w := Wear{PausesPerDay: pausesPerDay, BytesPerDay: float64(written) * pausesPerDay, Rating: rating}
	if w.BytesPerDay > 0 {
		w.Years = float64(rating) / w.BytesPerDay / 365
	}
	return w
}
