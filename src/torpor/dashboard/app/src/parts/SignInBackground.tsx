// The picture behind the sign-in form.

export function SignInBackground() {
  return (
    <svg class="sign-in-background" viewBox="0 0 900 700" preserveAspectRatio="xMinYMax slice" aria-hidden="true">
      <defs>
        <radialGradient id="glow">
          <stop offset="0.2" />
          <stop offset="1" />
        </radialGradient>
      </defs>
      <rect class="sky" width="900" height="700" />
      <circle class="glow" cx="330" cy="190" r="190" />
      <path class="moonlight" d="M350 120a70 70 0 1 0 62 102 58 58 0 0 1-62-102z" />
      <g class="stars">
        <circle cx="120" cy="110" r="2.400" />
        <circle cx="240" cy="60" r="1.600" />
        <circle cx="620" cy="130" r="2" />
        <circle cx="470" cy="80" r="1.600" />
        <circle cx="560" cy="190" r="1.400" />
        <circle cx="830" cy="80" r="1.800" />
        <circle cx="70" cy="240" r="1.400" />
        <circle cx="200" cy="260" r="1.800" />
        <circle cx="480" cy="300" r="1.400" />
        <circle cx="800" cy="300" r="1.600" />
      </g>
      <path class="far" d="M0 470c120-70 220-80 340-40s210 30 320-20 170-40 240-10v300H0z" />
      <path class="middle" d="M0 540c90-50 210-70 330-30s190 60 300 30 180-60 270-30v190H0z" />
      <path class="near" d="M0 610c140-60 280-50 420-20s320 40 480-20v130H0z" />
      <g class="sleeper" transform="translate(150 470) scale(2.400)">
        <path
          class="body"
          d="M8 46c0-13 9.500-21 21.500-21S52 33 52 45.500c0 6-4 9.500-10.500 9.500H18C11.500 55 8 51.500 8 46z"
        />
        <path class="tail" d="M50 39c8 1 9.500 15-2 16H27c-3 0-3-5 0-5h19c5.500 0 7-6 2-7.500z" />
        <circle class="body" cx="17" cy="33.500" r="5.500" />
        <circle class="ear" cx="17" cy="33.500" r="3" />
        <path class="eye" d="M8.500 43.500c2 1.800 4.600 1.800 6.600 0" />
        <circle class="nose" cx="7.500" cy="48.500" r="1.900" />
      </g>
      <g class="breath">
        <text x="140" y="500">
          z
        </text>
        <text x="118" y="470">
          z
        </text>
        <text x="92" y="432">
          z
        </text>
      </g>
    </svg>
  );
}
