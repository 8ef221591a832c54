// A text for prompts that are too short to calibrate a cache on: prose, talk, lists, code, numbers
// and a few other languages, so that every channel of the keys moves.
#pragma once

namespace polyhead::cli {

inline constexpr char kCalibrationText[] = R"(
The ferry leaves the old harbour at seven in the morning, when the fog still lies on the water and the
gulls walk along the quay as if it belonged to them. Anna had bought her ticket the evening before. She
put her suitcase next to a coil of rope, counted the steps down to the deck, and asked the captain how
long the crossing would take. "Two hours," he said, "or three, if the wind turns." It did not turn. By
noon she stood in front of the house that her grandmother had described in every letter: a green door, a
crooked chimney, and under the window a bench on which nobody had sat for years.

How does a heat pump work? A liquid with a low boiling point takes up heat outside and becomes a gas. A
compressor presses the gas together, so that its temperature rises. Inside the house the gas gives its
heat to the water of the radiators and becomes a liquid again. Because most of the heat comes from the
air or the ground, one unit of electricity moves three or four units of heat. In very cold weather the
difference between outside and inside grows, and the machine has to work harder.

Shopping list:
- 2 kg of potatoes, 500 g of flour, 6 eggs
- milk, butter, and a small jar of honey (if it costs less than 4.50)
- batteries, size AA; one light bulb, 60 W

def mean(values):
    """Return the arithmetic mean, or None for an empty list."""
    if not values:
        return None
    return sum(values) / len(values)

for (int i = 0; i < 10; ++i) { total += weights[i] * inputs[i]; }
SELECT name, COUNT(*) FROM orders WHERE year >= 2019 GROUP BY name ORDER BY 2 DESC;
{"city": "Oslo", "lat": 59.91, "lon": 10.75, "tags": ["capital", "harbour"], "open": true}

User: I cannot log in any more. The page says that my password has expired.
Assistant: I am sorry to hear that. Please open the settings, choose "Security", and ask for a new
password. You will get a message with a link within five minutes. Is there anything else?
User: No, that was all. Thank you!

In 1969 two people walked on the Moon while a third one circled above them. The journey of 384,400 km
took about three days; the computer on board had 4 KB of memory and ran at 1 MHz. Let x = 3 and y = 4:
then x^2 + y^2 = 25, so the distance is 5. The share rose from 12.5 % to 17.25 %, more than in any of the
eight quarters before.

La lune se leve sur la mer, et les enfants dorment deja. Morgen gehen wir mit den Hunden in den Wald,
wenn es nicht regnet. El tren llega a las ocho y media. Il pane era ancora caldo.

The court found that the contract had never been signed; therefore neither party was bound by it. The
plaintiff appealed. Meanwhile, scientists reported that the new alloy keeps its strength up to 900
degrees, which surprised even those who had made it. "We expected half of that," one of them wrote.
)";

}  // namespace polyhead::cli
